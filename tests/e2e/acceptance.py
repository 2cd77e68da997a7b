"""Shell scripts for booted trees: a rank starts and dies, and after the removal no file is left."""

from jobs import ROOT

# Parts of the scripts that run in the booted trees; each prints what it observed.
HELPERS = r"""
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
fail() {
    echo "FAILED: $*"
    for unit in rankwatch prometheus prometheus-alertmanager; do journalctl -u "$unit" --no-pager | tail -20; done
    cat /tmp/told || true
    rankwatch status || true
    exit 1
}
wait_for() { # SECONDS WHAT COMMAND...
    local seconds=$1 what=$2 begun=$SECONDS
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS - begun > seconds)); then fail "not within $seconds s: $what"; fi
        sleep 0.2
    done
    echo "after $((SECONDS - begun)) s: $what"
}
kept='^/(proc|sys|tmp|run/systemd|etc/prometheus|var/(log|cache|lib/(apt|dpkg|systemd|prometheus)))(/|$)|^/etc/g?(passwd|group|shadow)-$'
files() { find / -xdev -print | grep -vE "$kept" | sort; }
ranks() { [ "$(rankwatch status | awk -v state="$1" '$1 == 77 && $3 == state' | wc -l)" = "$2" ]; }
operations() { curl -s http://127.0.0.1:19028/metrics |
    awk '/^rankwatch_collective_operations_total/ { sum += $NF } END { printf "%d\n", sum }'; }
has_operations() { [ "$(operations)" -gt "${1:-0}" ]; }
is_active() { systemctl is-active -q rankwatch && rankwatch status; }
begin_job() { # of another user, under Slurm's id
    setpriv --reuid=65534 --regid=65534 --clear-groups rankwatch simulate --ranks 4 --scheduler slurm --job-id 77 \
        --job-dir "$(setpriv --reuid=65534 --regid=65534 --clear-groups mktemp -d)" \
        --dump-dir /var/lib/rankwatch/inspector >/dev/null 2>&1 &
}
"""
JOB = r"""
begin_job
wait_for 30 "four ranks of another user's job 77 are alive" ranks alive 4
wait_for 30 "their records are counted" has_operations
rankwatch status
"""


def commands(heading: str, page: str = "install") -> str:
    """Return the commands below a heading of a docs page."""
    part = (ROOT / f"docs/{page}.md").read_text().partition(f"### {heading}\n")[2]
    return part.partition("```sh\n")[2].partition("```")[0]


WATCHED = (
    commands("A trial", "prometheus")
    + r"""
python3 "$share/alertmanager/print_alerts.py" >/tmp/told 2>&1 &
wait_for 60 "the doctor finds a Prometheus that scrapes, with rules and Alertmanager" \
    rankwatch doctor --prometheus http://127.0.0.1:9090
"""
)
PAGED = r"""
wait_for 120 "a page, by Debian's Prometheus and Alertmanager" grep 'PAGE: RankDead: Job 77: rank 3 on 127' /tmp/told
cat /tmp/told
[ "$(grep -c PAGE /tmp/told)" = 1 ] || fail "not one page"
job_names_rank() {
    rankwatch job 77 --prometheus http://127.0.0.1:9090 | grep 'first to go: rank 3 on 127.0.0.1 killed (SIGKILL)'
}
wait_for 30 "the job on the terminal names the rank" job_names_rank
"""
DEATH = r"""
kill -9 "$(rankwatch status | awk '$1 == 77 && $2 == 3 { print $4 }')"
wait_for 60 "rank 3 is dead" ranks dead 1
"""
KILLED_AGENT = r"""
before=$(operations)
kill -9 "$(systemctl show -p MainPID --value rankwatch)"
wait_for 30 "the agent is back after SIGKILL" is_active
wait_for 30 "counters went on" has_operations "$before"
"""
STOPPED_AGENT = r"""
before=$(operations)
kill -STOP "$(systemctl show -p MainPID --value rankwatch)"
wait_for 90 "systemd has ended and started the stopped agent" timeout 2 rankwatch status
wait_for 30 "counters went on after SIGSTOP" has_operations "$before"
"""
DEB = (
    HELPERS
    + r"""
new=/opt/$(cd /opt && echo rankwatch_*_amd64.deb)
files >/tmp/before
python=$(readlink -f /usr/bin/python3)
mv "$python" /usr/bin/python3.10 # as on a release that has no newer one
ln -sf python3.10 /usr/bin/python3
! dpkg -i "$new" >/tmp/said 2>&1 || fail "installed without a Python that it runs on"
grep 'run it in a container' /tmp/said || fail "the refusal does not say what to do"
mv /usr/bin/python3.10 "$python"
ln -sf "${python##*/}" /usr/bin/python3
dpkg --purge rankwatch >/dev/null 2>&1
cd /opt
"""
    + commands("Debian's package")
    + r"""
rankwatch-setup --with-other-users --with-hardware --slurm
rankwatch-setup --check
grep -q '/usr/bin/rankwatch' /etc/slurm/epilog.d/50-rankwatch || fail "the epilog asks another program"
"""
    + JOB
    + r"""
rankwatch doctor || fail "the doctor finds a fault in a good installation"
before=$(operations)
dpkg -i /opt/previous.deb
wait_for 30 "the previous commit's version runs" is_active
wait_for 30 "counters went on over the way back" has_operations "$before"
wait_for 30 "its ranks are alive" ranks alive 4
before=$(operations)
dpkg -i "$new"
wait_for 30 "the new version runs again" is_active
rankwatch-setup --check | tee /tmp/rights
grep -q 'right 50-other-users: yes' /tmp/rights || fail "the upgrade lost a right"
wait_for 30 "counters went on over the upgrade" has_operations "$before"
wait_for 30 "its ranks are alive" ranks alive 4
systemctl disable -q --now rankwatch
dpkg -i "$new"
! systemctl is-enabled -q rankwatch || fail "an upgrade enabled the service"
! systemctl is-active -q rankwatch || fail "an upgrade started the service"
systemctl mask -q rankwatch
dpkg -i "$new" || fail "no upgrade of a masked service"
systemctl unmask -q rankwatch
systemctl enable -q --now rankwatch
dpkg --remove rankwatch
dpkg -i "$new"
wait_for 30 "removed and installed again, it runs" is_active
rankwatch-setup --with-other-users --with-hardware --slurm
wait_for 30 "its ranks are alive" ranks alive 4
"""
    + KILLED_AGENT
    + STOPPED_AGENT
    + WATCHED
    + DEATH
    + PAGED
    + r"""
systemctl stop prometheus prometheus-alertmanager
systemd-analyze security --no-pager rankwatch.service | tail -1
kill %1 %2
mkdir /var/lib/rankwatch/shared
mount -t tmpfs shared /var/lib/rankwatch/shared
touch /var/lib/rankwatch/shared/of-other-nodes
dpkg --purge rankwatch
[ -e /var/lib/rankwatch/shared/of-other-nodes ] || fail "the purge went into what is mounted there"
umount /var/lib/rankwatch/shared
rmdir /var/lib/rankwatch/shared /var/lib/rankwatch # nothing else is in it
files >/tmp/after
diff /tmp/before /tmp/after || fail "the purge left something"
! getent passwd rankwatch || fail "the purge left the user"
"""
)

INSTALLED = (
    HELPERS
    + r"""
umask 077 # of an administrator who trusts nobody
cd /tmp && cp /opt/rankwatch-*.tar.gz .
files >/tmp/before
"""
    + commands("The script")
    + r"""
scripts/install --check
"""
    + JOB
    + r"""
before=$(operations)
echo '# of the site' >> /etc/rankwatch/rankwatch.yml
scripts/install --with-other-users --with-hardware
tail -n1 /etc/rankwatch/rankwatch.yml | grep -q 'of the site' || fail "the configuration of the site was replaced"
wait_for 30 "it runs again" is_active
wait_for 30 "counters went on over the second installation" has_operations "$before"
"""
    + DEATH
    + r"""
kill %1
scripts/install --uninstall
[ -e /var/lib/rankwatch/checkpoint ] || fail "the checkpoint went without --purge"
scripts/install --uninstall --purge
! scripts/install --check >/dev/null || fail "--check says that it is installed"
files >/tmp/after
diff /tmp/before /tmp/after || fail "something was left"
! getent passwd rankwatch || fail "the user was left"
"""
)
PIPX = (
    HELPERS
    + r"""
mkdir /tmp/bundle && tar xf /opt/rankwatch-*.tar.gz -C /tmp/bundle --strip-components=1
export HOME=/root PATH=/root/.local/bin:$PATH
pipx install --pip-args="--no-index --find-links=/tmp/bundle/wheels" /tmp/bundle/wheels/rankwatch-*.whl
rankwatch --version
install -d -m 1777 /var/lib/rankwatch/inspector
rankwatch --log.level warn &
wait_for 30 "the agent answers" rankwatch status
begin_job() { cp -r /root/.local/share/pipx /tmp/pipx 2>/dev/null || cp -r /root/.local/pipx /tmp/pipx
    rankwatch simulate --ranks 4 --scheduler slurm --job-id 77 --dump-dir /var/lib/rankwatch/inspector >/dev/null & }
begin_job
wait_for 30 "four ranks are alive" ranks alive 4
wait_for 30 "their records are counted" has_operations
kill %2 %1
"""
)
ANSIBLE = (
    HELPERS
    + r"""
export HOME=/root LC_ALL=C.UTF-8
printf '[gpu_nodes]\nlocalhost ansible_connection=local\n' >/tmp/hosts
play() { # CONFIGURATION
    ansible-playbook -i /tmp/hosts /opt/ansible/rankwatch.yml -e "rankwatch_package=$(echo /opt/rankwatch_*.deb)" \
        -e "{\"rankwatch_config\": $1, \"rankwatch_web_config\": {\"basic_auth_users\": {}}}"
}
good='{"web": {"config_file": "/etc/rankwatch/web.yml"}, "health": {"ignore": ["gpu_hot"]}}'
play "$good"
wait_for 30 "the agent runs" is_active
rankwatch-setup --check | grep 'right 50-other-users: yes'
stat -c '%U:%G %a' /etc/rankwatch/web.yml | grep 'root:rankwatch 640'
play "$good" | grep 'changed=0 ' || fail "a second run changes something"
! play '{"wbe": {}}' >/tmp/refused 2>&1 || fail "a wrong configuration was taken"
grep 'unknown key' /tmp/refused
grep gpu_hot /etc/rankwatch/rankwatch.yml
"""
    + JOB
    + DEATH
)
