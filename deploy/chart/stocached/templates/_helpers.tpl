{{- define "stocached.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "stocached.fullname" -}}
{{- $name := include "stocached.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "stocached.selector" -}}
app.kubernetes.io/name: {{ include "stocached.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stocached.labels" -}}
{{ include "stocached.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "stocached.serviceAccount" -}}
{{- default (ternary (include "stocached.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{/* Bytes of a size of the server: a number, or a number with a unit (GiB of 1024, GB of 1000). [what, value] */}}
{{- define "stocached.bytes" -}}
{{- $what := index . 0 }}{{ $value := index . 1 }}
{{- $units := dict "" 1 "B" 1 "kB" 1000 "KB" 1000 "MB" 1e6 "GB" 1e9 "TB" 1e12 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824 "TiB" 1099511627776 }}
{{- include "stocached.number" (list $what $value $units "such as 8GiB") }}
{{- end }}

{{/* Bytes of a quantity of Kubernetes, such as 8Gi. [what, value] */}}
{{- define "stocached.quantity" -}}
{{- $what := index . 0 }}{{ $value := index . 1 }}
{{- $units := dict "" 1 "k" 1000 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- include "stocached.number" (list $what $value $units "such as 8Gi") }}
{{- end }}

{{- define "stocached.number" -}}
{{- $what := index . 0 }}{{ $value := index . 1 }}{{ $units := index . 2 }}{{ $example := index . 3 }}
{{- $text := kindIs "string" $value | ternary (toString $value) (printf "%d" (int64 $value)) | trim }}
{{- $unit := regexReplaceAll "^[0-9.]+ *" $text "" }}
{{- if not (and (regexMatch "^[0-9]+(\\.[0-9]+)? *[A-Za-z]*$" $text) (hasKey $units $unit)) }}
{{- fail (printf "%s: %q is not a size; write a number with a unit, %s" $what $text $example) }}
{{- end }}
{{- int64 (floor (mulf (float64 (regexFind "^[0-9.]+" $text)) (float64 (get $units $unit)))) }}
{{- end }}

{{- define "stocached.tier" -}}
{{- with .Values.valkey }}
{{- $tier := merge (dict "kind" "cluster") .options }}
{{- $namespace := default $.Release.Namespace .namespace }}
{{- $_ := set $tier "addresses" (list (printf "%s.%s.svc:%d" .name $namespace (int .port))) }}
{{- if .user }}{{ $_ = set $tier "user" .user }}{{ end }}
{{- if .passwordSecret.name }}{{ $_ = set $tier "password_file" "/run/secrets/stocached-valkey/password" }}{{ end }}
{{- if .tls.enabled }}
{{- $tls := dict }}
{{- if .tls.caSecret }}{{ $_ = set $tls "ca" "/run/secrets/stocached-valkey-ca/ca.crt" }}{{ end }}
{{- if .tls.serverName }}{{ $_ = set $tls "server_name" .tls.serverName }}{{ end }}
{{- $_ = set $tier "tls" $tls }}
{{- end }}
{{- toYaml $tier }}
{{- end }}
{{- end }}

{{/* Not empty: a cluster tier would leave nothing of the read_ahead of this cache, and the server refuses both. */}}
{{- define "stocached.alone" -}}
{{- if hasKey .source "read_ahead" }}{{ if not (dig "read_ahead" "blocks" false (merge (dict "read_ahead" (default dict .source.read_ahead)) .source)) }}alone{{ end }}{{ end }}
{{- end }}

{{/* Fails if the folder of a tier on a disk is on no volume: the file system of the image is read-only. [., cache, tier] */}}
{{- define "stocached.disk" -}}
{{- $cache := index . 1 }}{{ $dir := index . 2 "dir" | default "" }}{{ $there := list }}
{{- range (index . 0).Values.extraVolumeMounts }}
{{- if and (not .readOnly) (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $dir)) }}{{ $there = append $there . }}{{ end }}
{{- end }}
{{- if not $there }}
{{- fail (printf "config.caches: cache %s has a tier disk in %q, where no volume is mounted to be written; mount one there with extraVolumes and extraVolumeMounts, such as a hostPath on a disk of the node" $cache.name $dir) }}
{{- end }}
{{- end }}

{{/* The configuration of the server: that of the values, with metrics and the cluster tier. */}}
{{- define "stocached.config" -}}
{{- $config := deepCopy .Values.config }}
{{- if not $config.caches }}
{{- fail "config.caches: the server needs at least one cache, such as {name: pictures, source: {kind: dir, path: /data}, size: 64GiB}" }}
{{- end }}
{{- range $cache := $config.caches }}
{{- $clusters := list }}
{{- range $cache.tiers }}
{{- if hasKey . "password" }}
{{- fail (printf "config.caches: a tier of cache %s has a password, which would stand in a ConfigMap; use password_file with a Secret in extraVolumes, or valkey.passwordSecret" $cache.name) }}
{{- end }}
{{- if eq .kind "cluster" }}{{ $clusters = append $clusters . }}{{ end }}
{{- if eq .kind "disk" }}{{ include "stocached.disk" (list $ $cache .) }}{{ end }}
{{- end }}
{{- if and $.Values.valkey.enabled (not $clusters) (not (include "stocached.alone" $cache)) }}
{{- $_ := set $cache "tiers" (append (default list $cache.tiers) (include "stocached.tier" $ | fromYaml)) }}
{{- end }}
{{- end }}
{{- if .Values.metrics.enabled }}
{{- $_ := set $config "metrics" (dict "listen" (printf "0.0.0.0:%d" (int .Values.metrics.port))) }}
{{- end }}
{{- range $key, $value := $config }}
{{- if not $value }}{{ $_ := unset $config $key }}{{ end }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* Bytes of all caches. */}}
{{- define "stocached.caches" -}}
{{- $sum := int64 0 }}
{{- range .Values.config.caches }}
{{- $sum = add $sum (include "stocached.bytes" (list (printf "size of cache %s" .name) .size) | int64) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Bytes of the server besides its caches: buffers that the configuration names, and processMemory. */}}
{{- define "stocached.besides" -}}
{{- $config := include "stocached.config" . | fromYaml }}
{{- $sum := include "stocached.bytes" (list "processMemory" .Values.processMemory) | int64 }}
{{- $clients := dig "limits" "clients" "512MiB" $config }}
{{- $sum = add $sum (include "stocached.bytes" (list "config.limits.clients" $clients) | int64) }}
{{- range $config.caches }}
{{- $name := .name }}
{{- range .tiers }}
{{- $sum = add $sum (include "stocached.bytes" (list (printf "memory of a tier of cache %s" $name) (default "64MiB" .memory)) | int64) }}
{{- end }}
{{- if hasKey .source "read_ahead" }}
{{- $ahead := default dict .source.read_ahead }}
{{- $sum = add $sum (include "stocached.bytes" (list (printf "read_ahead.size of cache %s" $name) (default "64MiB" $ahead.size)) | int64) }}
{{- end }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Bytes that the pod needs. The server leaves a sixteenth of its cgroup free, at least 128 MiB and at most 1 GiB. */}}
{{- define "stocached.memory" -}}
{{- $need := add (include "stocached.caches" . | int64) (include "stocached.besides" . | int64) }}
{{- add $need (max 134217728 (min 1073741824 (add1 (div $need 15)))) }}
{{- end }}

{{- define "stocached.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- $need := include "stocached.memory" . | int64 }}
{{- $limits := default dict $resources.limits }}
{{- $requests := default dict $resources.requests }}
{{- if not $limits.memory }}{{ $_ := set $limits "memory" (printf "%dMi" (div (add $need 1048575) 1048576)) }}{{ end }}
{{- if not $requests.memory }}{{ $_ := set $requests "memory" $limits.memory }}{{ end }}
{{- range $key, $given := dict "limits" $limits.memory "requests" $requests.memory }}
{{- $bytes := include "stocached.quantity" (list (printf "resources.%s.memory" $key) $given) | int64 }}
{{- if lt $bytes $need }}
{{- fail (printf "resources.%s.memory is %v (%d bytes), and the pod needs %d bytes: %s for the caches, %s for the server, and a reserve. Leave it out, or make the caches smaller" $key $given $bytes $need (include "stocached.caches" $) (include "stocached.besides" $)) }}
{{- end }}
{{- end }}
{{- toYaml (dict "limits" $limits "requests" $requests) }}
{{- end }}

{{/* Size of a tmpfs for all caches, with the tenth, at most 1 GiB, that the server leaves free. */}}
{{- define "stocached.shm" -}}
{{- $sum := include "stocached.caches" . | int64 }}
{{- printf "%dMi" (div (add $sum 1048575 (min 1073741824 (add (div $sum 9) 1048576)) 1048576) 1048576) }}
{{- end }}
