//! Downloads libtpu into the cache folder, unless it is already installed, and prints its path.
//! Tests that compile for TPUs need libtpu. They need no TPU:
//! `cargo run -p fulmen-pjrt --example fetch_libtpu`.

use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Result, fetch};

fn main() -> Result<()> {
    if locate(Platform::Tpu, None).is_err_and(|error| error.is_not_found()) {
        fetch::libtpu()?;
    }
    println!("{}", locate(Platform::Tpu, None)?.display());
    Ok(())
}
