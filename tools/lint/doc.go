// Package lint has no code: its tests check rules of this repository that no linter knows.
package lint
