//! Clients with a key-value store: of a plugin in C that uses it, and of the CPU plugin, which does
//! not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use fulmen_pjrt::{KeyValueError, KeyValueStore, NamedValue, Plugin};

#[derive(Default)]
struct Store(Mutex<BTreeMap<String, Vec<u8>>>);

impl Store {
    fn keys(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}

impl KeyValueStore for Store {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        let late =
            || KeyValueError::timed_out(format!("{key}: process 3 has not come in {timeout:?}"));
        self.try_get(key)?.ok_or_else(late)
    }
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError> {
        Ok(self.0.lock().unwrap().get(key).cloned())
    }
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
        self.0.lock().unwrap().insert(key.to_owned(), value.to_owned());
        Ok(())
    }
}

fn c_plugin(folder: &tempfile::TempDir) -> Plugin {
    Plugin::load(shared_object(folder.path(), "store", include_str!("key_value.c"))).unwrap()
}

#[test]
fn a_plugin_reaches_the_store_and_its_options_as_long_as_its_client_lives() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::default());
    // The options that JAX passes to the CUDA plugin.
    let options = [
        ("visible_devices", NamedValue::IntList(vec![1, 3])),
        ("node_id", 1.into()),
        ("num_nodes", 2.into()),
        ("memory_fraction", 0.75.into()),
        ("preallocate", false.into()),
        ("platform_name", "cuda".into()),
    ];
    let client = c_plugin(&folder).create_client_with(&options, store.clone()).unwrap();
    let options = "visible_devices=1,3 node_id=1 num_nodes=2 memory_fraction=0.75 preallocate=no platform_name=cuda ";
    assert_eq!(client.platform_name(), format!("{options}got hello, then 0 hello, then 5"));
    assert_eq!((client.devices().len(), client.process_index()), (0, 1));
    assert_eq!(store.keys(), ["node/0"]);
    assert_eq!(Arc::strong_count(&store), 2);
    // The client uses the store even while it closes.
    drop(client);
    assert_eq!(store.keys(), ["closed", "node/0"]);
    assert_eq!(Arc::strong_count(&store), 1);
}

#[test]
fn the_stores_message_is_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::default());
    let error = c_plugin(&folder)
        .create_client_with(&[("platform_name", "late".into())], store.clone())
        .unwrap_err();
    assert_eq!(error.code(), Some("DEADLINE_EXCEEDED"));
    says(&error, &["opening the devices of", "late: process 3 has not come in 7ms"]);
    assert_eq!(Arc::strong_count(&store), 1, "no client holds it");
}

#[test]
fn a_cpu_plugin_ignores_a_store() {
    let store = Arc::new(Store::default());
    let client =
        plugin().create_client_with(&[("cpu_device_count", 2.into())], store.clone()).unwrap();
    assert_eq!(get(&put(&client, &[1.0, 2.0], 1)), [1.0, 2.0]);
    drop(client);
    assert_eq!(store.keys(), [""; 0]);
    assert_eq!(Arc::strong_count(&store), 1);
}
