{{- define "leasebeat.name" -}}
{{- default .Chart.Name .Values.nameOverride }}
{{- end }}

{{/* 53 characters at most: with the longest suffix, `-migrate`, it is still a label. */}}
{{- define "leasebeat.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride }}
{{- else if contains (include "leasebeat.name" .) .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "leasebeat.name" .) | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Of the server's pods alone: those of the migration and of the tests have another component. */}}
{{- define "leasebeat.selectorLabels" -}}
app.kubernetes.io/name: {{ include "leasebeat.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: server
{{- end }}

{{- define "leasebeat.commonLabels" -}}
app.kubernetes.io/name: {{ include "leasebeat.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "leasebeat.labels" -}}
{{ include "leasebeat.commonLabels" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "leasebeat.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "leasebeat.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "leasebeat.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest }}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{/* What every pod of this chart has in common. */}}
{{- define "leasebeat.podSpec" -}}
automountServiceAccountToken: false
{{/* A Service called `leasebeat` would otherwise set LEASEBEAT_PORT to `tcp://…`. */ -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
  {{- with .Values.podSecurityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every container of this chart has in common. */}}
{{- define "leasebeat.container" -}}
image: {{ include "leasebeat.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  readOnlyRootFilesystem: true
{{- end }}

{{- define "leasebeat.env" -}}
env:
  - name: DATABASE_URL
    valueFrom:
      secretKeyRef:
        name: {{ required "database.existingSecret is required: the name of a Secret that holds the database's address" .Values.database.existingSecret | quote }}
        key: {{ .Values.database.secretKey | quote }}
  - name: LEASEBEAT_LOG_FORMAT
    value: {{ .Values.log.format }}
  - name: LEASEBEAT_LOG_LEVEL
    value: {{ .Values.log.level }}
  - name: LEASEBEAT_PORT
    value: "8080"
  - name: LEASEBEAT_SHUTDOWN_GRACE
    value: {{ .Values.shutdownGraceSeconds | quote }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "leasebeat.volumeMounts" -}}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "leasebeat.volumes" -}}
volumes:
  - name: tmp
    emptyDir: {}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
