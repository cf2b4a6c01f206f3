//! What diffusers gave for the same folders.

use super::*;
use crate::reference::{Expected, compare_in_python, folder};

#[test]
fn folders_of_diffusers_give_their_predictions() {
    let (mut model, expected) = (UNet::from_folder(folder("unet")).unwrap(), Expected::read("unet"));
    model.gradient_checkpointing = true;
    let classes = expected.tensor("class_labels");
    let prediction = model.forward(expected.tensor("sample"), expected.tensor("timesteps"), Some(&classes));
    expected.check(&[("prediction", &prediction)]);
}

#[test]
#[ignore = "asks Python: FULMEN_PYTHON=python cargo test -p fulmen-models --lib in_python -- --ignored"]
fn written_weights_give_the_same_in_python() {
    compare_in_python(&UNet::from_folder(folder("unet")).unwrap(), "unet", "unet.py");
}
