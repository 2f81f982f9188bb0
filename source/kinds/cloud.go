//go:build cloud

package kinds

import _ "github.com/stocached/stocached/source/cloud" // gcs:// and azblob://
