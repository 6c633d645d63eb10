{{- define "liftpy.labels" -}}
app.kubernetes.io/name: liftpy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "liftpy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- /* The pods of a StatefulSet have its name and a number. */ -}}
{{- define "liftpy.controllers" -}}
{{- if gt (int .Values.controllers) (int .Values.replicas) -}}
{{- fail (printf "controllers=%d is more than replicas=%d. The first start of a cluster needs all its controllers." (int .Values.controllers) (int .Values.replicas)) -}}
{{- end -}}
{{- $names := list -}}
{{- range $number := until (int .Values.controllers) -}}
{{- $names = append $names (printf "%s-%d" $.Release.Name $number) -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}
{{- define "liftpy.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
{{- define "liftpy.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}
