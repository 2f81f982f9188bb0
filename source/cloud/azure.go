//go:build cloud

package cloud

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	azureblobs "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"

	"github.com/stocached/stocached/source/remote"
)

// azure is Azure Blob Storage. Tags are ETags.
type azure struct{}

func (azure) scheme() string { return "azblob" }

// bucket opens a container. The account and its credentials come from the environment, as for Azure's tools.
func (azure) bucket(ctx context.Context, name string, transport http.RoundTripper, anonymous bool) (*blob.Bucket, error) {
	o := &container.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: transport},
		Retry: policy.RetryOptions{MaxRetries: -1}}} // the source has its own policy
	text := cmp.Or(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"), os.Getenv("AZURE_STORAGEBLOB_CONNECTIONSTRING"))
	var client *container.Client
	var err error
	if text != "" && !anonymous {
		client, err = container.NewClientFromConnectionString(text, name, o)
	} else {
		client, err = azureClient(name, anonymous, o)
	}
	if err != nil {
		return nil, err
	}
	return azureblob.OpenBucket(ctx, client, nil)
}

func azureClient(name string, anonymous bool, o *container.ClientOptions) (*container.Client, error) {
	account, key := os.Getenv("AZURE_STORAGE_ACCOUNT"), os.Getenv("AZURE_STORAGE_KEY")
	if account == "" {
		return nil, errors.New("set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING")
	}
	options := azureblob.NewDefaultServiceURLOptions()
	if anonymous {
		options.SASToken = ""
	}
	service, err := azureblob.NewServiceURL(options)
	if err != nil {
		return nil, err
	}
	base, signature, signed := strings.Cut(string(service), "?")
	at := strings.TrimSuffix(base, "/") + "/" + name
	switch {
	case signed:
		return container.NewClientWithNoCredential(at+"?"+signature, o)
	case anonymous:
		return container.NewClientWithNoCredential(at, o)
	case key != "":
		shared, err := azblob.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, errors.New("AZURE_STORAGE_KEY is no key in base64")
		}
		return container.NewClientWithSharedKeyCredential(at, shared, o)
	}
	token, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return container.NewClient(at, token, o)
}

func (azure) noBucket(err error) bool { return bloberror.HasCode(err, bloberror.ContainerNotFound) }

func (azure) keys() string {
	return "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY, or remote.credentials"
}

func (azure) match(as func(any) bool, tag string) {
	var o *azureblobs.DownloadStreamOptions
	if as(&o) {
		same := azcore.ETag(tag)
		o.AccessConditions = &azureblobs.AccessConditions{
			ModifiedAccessConditions: &azureblobs.ModifiedAccessConditions{IfMatch: &same}}
	}
}

func (azure) matchWrite(as func(any) bool) {
	var o *azblob.UploadStreamOptions
	if as(&o) {
		o.AccessConditions = &azureblobs.AccessConditions{
			ModifiedAccessConditions: &azureblobs.ModifiedAccessConditions{IfNoneMatch: new(azcore.ETagAny)}}
	}
}

func (azure) starts(as func(any) bool, offset int64) error {
	var answer azureblobs.DownloadStreamResponse
	span := ""
	if as(&answer) && answer.ContentRange != nil {
		span = *answer.ContentRange
	}
	_, err := remote.AnsweredBytes(span, offset, 0)
	return err
}

func (azure) tag(as func(any) bool) string {
	var answer azureblobs.DownloadStreamResponse
	var about azureblobs.GetPropertiesResponse
	var entry container.BlobItem
	var tag *azcore.ETag
	switch {
	case as(&answer):
		tag = answer.ETag
	case as(&about):
		tag = about.ETag
	case as(&entry) && entry.Properties != nil:
		tag = entry.Properties.ETag
	}
	if tag == nil {
		return ""
	}
	return `"` + strings.Trim(string(*tag), `"`) + `"` // a list has it without quotes
}
