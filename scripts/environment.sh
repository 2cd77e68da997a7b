# Functions for the other scripts: find Python, install packages, make a Python environment for each lock file.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

is_python() { # COMMAND [MINOR]: succeed for a supported Python (of this minor version) that can make environments
    "$1" - "${2:-}" >/dev/null 2>&1 <<'PYTHON'
import ensurepip, sys, venv
minor = sys.version_info[1]
sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13) and sys.argv[1] in ("", str(minor))))
PYTHON
}

find_python() { # [MINOR]: print the path of a supported Python; fail if there is none
    # The distribution's Python comes first: every user can run it. Other users cannot run a Python in root's home.
    local folder minor candidate
    for folder in /usr/bin/ /usr/local/bin/ '' "${PYENV_ROOT:-${HOME:-/root}/.pyenv}/versions/"; do
        for minor in ${1:-13 12 11}; do
            if [[ $folder == */versions/ ]]; then candidate=$(compgen -G "${folder}3.$minor.*/bin/python" | tail -n1 || true)
            else candidate=${folder}python3.$minor; fi
            if [[ -n $candidate ]] && is_python "$candidate" "$minor"; then command -v "$candidate"; return; fi
        done
    done
    is_python python3 "${1:-}" && command -v python3
}

need_python() { # print the path of a supported Python; if there is none, install the distribution's Python
    find_python && return
    if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
        fail "no Python 3.11, 3.12 or 3.13 with its venv module found; on Debian or Ubuntu: apt-get install python3-venv"
    fi
    say "installing python3 python3-venv" >&2
    local log
    log=$(apt_install python3 python3-venv 2>&1) || say "$log" >&2
    find_python || fail "this release has no Python 3.11, 3.12 or 3.13: use a container (docs/containers.md)"
}

apt_install() ( # PACKAGE...: install without starting any service
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then # invoke-rc.d(8) calls it; 101: starting services is not allowed
        trap 'rm -f "$policy"' EXIT # also after Ctrl-C: with the file no package could start a service
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    apt-get update -qq </dev/null &&
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" </dev/null
)

make_environment() { # DIR PYTHON LOCK...: install the packages of the locks and this checkout in DIR, unless they are there
    local dir=$1 python=$2 stamp checksum locks=()
    shift 2
    checksum=$(cat "$@" pyproject.toml | sha256sum)
    stamp=$dir/installed-$(basename "$1")
    if [[ -f $stamp && $(<"$stamp") == "$checksum" ]] && "$dir/bin/python" -c '' 2>/dev/null; then return; fi
    if ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
        if [[ -z $python ]]; then python=$(need_python) || return; fi
        say "making $dir"
        rm -rf "$dir"
        "$python" -m venv "$dir"
    fi
    say "installing ${*} into $dir"
    for lock; do locks+=(-r "$lock"); done
    local pip=("$dir/bin/python" -m pip --disable-pip-version-check --no-input install --quiet)
    "${pip[@]}" --require-hashes "${locks[@]}"
    "${pip[@]}" --no-deps --no-build-isolation --editable .
    printf '%s\n' "$checksum" >"$stamp"
}
