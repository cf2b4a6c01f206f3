//! Tests checkpoints in buckets of a real server.

use std::time::Duration;

use super::cloud::{check_location, store};
use super::moto::Server;

#[test]
fn checkpoints_in_buckets_of_a_real_server() {
    let Some(server) = Server::for_test("checkpoints_in_buckets_of_a_real_server") else { return };
    for location in ["s3://models/run", "gs://weights/deep/run"] {
        let bucket = location.split('/').nth(2).unwrap();
        server.make_bucket(bucket).unwrap();
        check_location(&store(&server.url(), location, Duration::from_secs(20)), location);
    }
}
