//! Comparison with the results of transformers for the same folder.

use super::*;
use crate::reference::{ExpectedValues, compare_in_python, folder};

#[test]
fn a_folder_of_transformers_gives_its_logits() {
    let mut model = ConvNext::from_folder(folder("convnext")).unwrap();
    let expected = ExpectedValues::read("convnext");
    model.gradient_checkpointing = true;
    let logits = model.forward(expected.tensor("pixel_values"));
    expected.check(&[("logits", &logits)]);
}

#[test]
#[ignore = "asks Python: PYTHON=python cargo test -p fulmen-models --lib in_python -- --ignored"]
fn written_weights_give_the_same_in_python() {
    compare_in_python(
        &ConvNext::from_folder(folder("convnext")).unwrap(),
        "convnext",
        "convnext.py",
    );
}
