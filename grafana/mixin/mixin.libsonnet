// The rules and dashboards of rankwatch as a monitoring mixin. A site's own thresholds: write deploy/prometheus/rules
// and grafana/dashboards with their builders first.
local files = [
  importstr '../../deploy/prometheus/rules/agent.yml',
  importstr '../../deploy/prometheus/rules/deaths.yml',
  importstr '../../deploy/prometheus/rules/fabric.yml',
  importstr '../../deploy/prometheus/rules/goodput.yml',
  importstr '../../deploy/prometheus/rules/hangs.yml',
  importstr '../../deploy/prometheus/rules/hardware.yml',
  importstr '../../deploy/prometheus/rules/jobs.yml',
  importstr '../../deploy/prometheus/rules/lateness.yml',
  importstr '../../deploy/prometheus/rules/lemons.yml',
];
local groups = std.flatMap(function(text) std.parseYaml(text).groups, files);
local has(kind, group) = [rule for rule in group.rules if std.objectHas(rule, kind)];
local groupsWith(kind) = [group { rules: has(kind, group) } for group in groups if has(kind, group) != []];

{
  grafanaDashboards+:: {
    'rankwatch-agent.json': import '../dashboards/agent.json',
    'rankwatch-fabric.json': import '../dashboards/fabric.json',
    'rankwatch-fleet.json': import '../dashboards/fleet.json',
    'rankwatch-job.json': import '../dashboards/job.json',
    'rankwatch-launchers.json': import '../dashboards/launchers.json',
    'rankwatch-node.json': import '../dashboards/node.json',
    'rankwatch-rank.json': import '../dashboards/rank.json',
  },
  prometheusRules+:: { groups+: groupsWith('record') },
  prometheusAlerts+:: { groups+: groupsWith('alert') },
}
