//! PyTorch's own files without the feature `pytorch`: an error that says what reads them.

use std::collections::BTreeMap;
use std::path::Path;

use super::file::Value;
use crate::{Result, error};

/// Refuses a file.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Value>> {
    let message = "PyTorch's own files are read only with the feature `pytorch` of fulmen (in Cargo.toml: \
                   features = [\"pytorch\"]); add it, or convert the file to safetensors";
    Err(error::format(path, "file of weights for this program", message))
}

#[cfg(test)]
mod tests {
    use crate::weights::StateDict;

    #[test]
    fn a_file_of_pytorch_is_refused_with_the_feature_that_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.pt");
        std::fs::write(&path, b"PK\x03\x04 and so on").unwrap();
        let error = StateDict::read(&path).unwrap_err();
        assert!(error.is_format(), "{error}");
        let message = error.to_string();
        assert!(
            message.contains("model.pt: ") && message.contains("feature `pytorch`"),
            "{message}"
        );
    }
}
