{{- /* The agents' rankwatch.yml: the one of the kustomize base, the web file, and the values under config. */ -}}
{{- define "rankwatch.config" -}}
{{- if hasKey (.Values.config.web | default dict) "listen_address" }}
{{- fail "config.web.listen_address: ports and probes of the chart need :19028" }}
{{- end }}
{{- if hasKey (.Values.config.web | default dict) "config_file" }}
{{- fail "config.web.config_file: the chart sets it; see auth.enabled" }}
{{- end }}
{{- $config := .Files.Get "files/base/rankwatch.yml" | fromYaml }}
{{- if .Values.auth.enabled }}
{{- $_ := set $config.web "config_file" "/etc/rankwatch-web/web.yml" }}
{{- end }}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml }}
{{- end }}
