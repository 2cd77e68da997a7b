{{- /* The agents' rankwatch.yml: the one of the kustomize base, the web file, and the values under config. */ -}}
{{- define "rankwatch.config" -}}
{{- $config := .Files.Get "files/base/rankwatch.yml" | fromYaml }}
{{- if .Values.auth.enabled }}
{{- $_ := set $config.web "config_file" "/etc/rankwatch-web/web.yml" }}
{{- end }}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml }}
{{- end }}
