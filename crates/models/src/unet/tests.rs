//! Comparison with the results of diffusers for the same folders.

use fulmen_nn::weights::StateDict;

use super::*;
use crate::reference::{ExpectedValues, compare_in_python, folder};

#[test]
fn folders_of_diffusers_give_their_predictions() {
    let mut model = UNet::from_folder(folder("unet")).unwrap();
    let expected = ExpectedValues::read("unet");
    model.gradient_checkpointing = true;
    let classes = expected.tensor("class_labels");
    let prediction =
        model.forward(expected.tensor("sample"), expected.tensor("timesteps"), Some(&classes));
    expected.check(&[("prediction", &prediction)]);
}

#[test]
fn the_last_activation_is_diffusers_for_any_setting() {
    let expected = ExpectedValues::read("unet");
    let inputs = ["sample", "timesteps", "class_labels"].map(|name| expected.tensor(name));
    let predictions = [Activation::Relu, Activation::Gelu].map(|activation| {
        let model = UNet::from_folder_with(folder("unet"), |config| config.act_fn = activation);
        model.unwrap().forward(&inputs[0], &inputs[1], Some(&inputs[2]))
    });
    expected.check(&[("relu", &predictions[0]), ("gelu", &predictions[1])]);
}

#[test]
fn the_first_published_names_of_attention_are_known() {
    let weights = StateDict::read(folder("unet")).unwrap();
    let old = [("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")];
    for (name, _) in weights.iter() {
        let first = old.iter().fold(name.to_owned(), |name, (new, old)| name.replace(new, old));
        assert_eq!(UNet::current_name(&first), name);
    }
}

#[test]
#[ignore = "asks Python: PYTHON=python cargo test -p fulmen-models --lib in_python -- --ignored"]
fn written_weights_give_the_same_in_python() {
    compare_in_python(&UNet::from_folder(folder("unet")).unwrap(), "unet", "unet.py");
}
