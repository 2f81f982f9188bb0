// Package check holds tests alone: that the alerts and the dashboard in deploy/ ask for metrics that a server has, in queries that Prometheus understands.
package check
