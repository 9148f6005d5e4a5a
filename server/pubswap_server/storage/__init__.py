"""Where blobs and uploads are kept: a local folder, or an S3 bucket with a local cache."""
