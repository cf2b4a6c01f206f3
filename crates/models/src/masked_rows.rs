//! Rows whose tokens are all hidden by the attention mask, against transformers
//! (`reference/masked_rows.py`). In most models, a token that sees none gets zeros from an attention;
//! in T5, it gets the mean of all.

use fulmen_tensor::{DType, Tensor};

use crate::Pretrained;
use crate::bert::BertForMaskedLm;
use crate::marian::Marian;
use crate::reference::{ExpectedValues, folder};
use crate::roberta::RobertaForMaskedLm;
use crate::t5::T5;

#[track_caller]
fn load<M: Pretrained>(name: &str) -> M {
    M::from_folder(folder(name)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn rows_without_a_visible_token_are_as_in_transformers() {
    let names = ["bert", "roberta", "marian", "t5", "t5-gated"];
    let decoder_ids = Tensor::from_slice(&[0, 5, 6, 7, 0, 8, 9, 3], [2, 4]);
    let logits = names.map(|name| {
        let ids = ExpectedValues::read(name).tensor("input_ids");
        let rows = Tensor::arange(DType::I32, ids.size(0)).unsqueeze(1);
        let mask = rows.eq(0.0).to_dtype(DType::I32).broadcast_to(ids.shape());
        match name {
            "bert" => load::<BertForMaskedLm>(name).forward(&ids, None, Some(&mask)),
            "roberta" => load::<RobertaForMaskedLm>(name).forward(&ids, Some(&mask)),
            "marian" => load::<Marian>(name).forward(&ids, Some(&mask), &decoder_ids),
            _ => load::<T5>(name).decoding(&ids, Some(&mask)).forward(&decoder_ids),
        }
    });
    let actual: Vec<(&str, &Tensor)> = names.into_iter().zip(&logits).collect();
    ExpectedValues::read("masked_rows").check(&actual);
}
