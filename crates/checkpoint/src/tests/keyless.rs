//! Options of locations in buckets of a server that requires no keys.

use fulmen_files::StoreOptions;

/// The options of a location on the server at this address.
pub(crate) fn options(url: &str, location: &str) -> StoreOptions {
    if location.starts_with("gs://") {
        // The library's option for stores without keys works only for reading, because it does not
        // sign.
        let key = serde_json::json!({
            "gcs_base_url": url, "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": "",
        });
        let options = StoreOptions::new().set("google_base_url", url);
        return options.set("google_service_account_key", &key.to_string());
    }
    StoreOptions::new().set("aws_endpoint_url", url).set("aws_skip_signature", "true")
}
