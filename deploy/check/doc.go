// Package check holds only tests: the alerts and the dashboard in deploy/ use metrics that a server
// has, in valid Prometheus queries.
package check
