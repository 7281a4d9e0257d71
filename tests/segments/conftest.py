"""Clients for S3 share what botocore reads of its files, which takes longer than most scenarios: in one session they do anyhow."""

import functools

import botocore.session

botocore.session.create_loader = functools.cache(botocore.session.create_loader)
