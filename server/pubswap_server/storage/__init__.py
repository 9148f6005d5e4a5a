"""Storage of blobs and uploads: a local folder, or an S3 bucket with a local cache."""
