//! Helpers that several tests share.

pub(crate) mod s3;
