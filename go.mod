module github.com/stocached/stocached

go 1.26
