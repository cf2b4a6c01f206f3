//! The settings of DeepSeek's own models: the sizes of latent attention, and how routers select.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Config, ModelType};
use crate::{Result, error};

/// How DeepSeek's routers select the experts of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TopkMethod {
    /// The best ones of all.
    Greedy,
    /// The best ones of the `topk_group` groups that have the best single experts.
    GroupLimitedGreedy,
    /// The best ones, with a bias, of the `topk_group` groups whose two best experts have the largest
    /// sum.
    NoauxTc,
}

/// How the logits of DeepSeek's routers become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScoringFunc {
    /// A softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
}

/// The numbers of features in latent attention.
#[derive(Clone, Copy)]
pub(in crate::decoder) struct LatentSizes {
    /// The latent features of queries, if they have some.
    pub(in crate::decoder) queries: Option<usize>,
    /// The latent features of keys and values.
    pub(in crate::decoder) keys: usize,
    /// The features of a head's query and key that are not rotated.
    pub(in crate::decoder) plain: usize,
    /// Those that are rotated. Keys of all heads have the same ones.
    pub(in crate::decoder) rotated: usize,
    /// The features of a head's value.
    pub(in crate::decoder) value: usize,
}

impl LatentSizes {
    /// The features of a head's query and key.
    pub(in crate::decoder) fn query(&self) -> usize {
        self.plain.saturating_add(self.rotated)
    }
}

impl Config {
    /// The numbers of features in latent attention. Those that are missing are 0.
    pub(in crate::decoder) fn latent_sizes(&self) -> LatentSizes {
        LatentSizes {
            queries: self.q_lora_rank,
            keys: self.kv_lora_rank.unwrap_or(0),
            plain: self.qk_nope_head_dim.unwrap_or(0),
            rotated: self.qk_rope_head_dim.unwrap_or(0),
            value: self.v_head_dim.unwrap_or(0),
        }
    }

    /// Checks what DeepSeek's routers do.
    pub(super) fn check_router(&self) -> Result<()> {
        if !self.has_latent_attention() {
            return Ok(());
        }
        let is_v2 = self.model_type == ModelType::DeepseekV2;
        let score = if is_v2 { ScoringFunc::Softmax } else { ScoringFunc::Sigmoid };
        let methods = if is_v2 {
            vec![TopkMethod::Greedy, TopkMethod::GroupLimitedGreedy]
        } else {
            vec![TopkMethod::NoauxTc]
        };
        self.check_choice("scoring_func", self.scoring_func, &[score])?;
        self.check_choice("topk_method", self.topk_method, &methods)?;
        if !is_v2 {
            return Ok(());
        }
        if self.norm_topk_prob == Some(true) {
            return Err(error::config(
                "`norm_topk_prob` is true, which transformers ignores in DeepSeek-V2; expected false",
            ));
        }
        let groups = [("n_group", self.n_group), ("topk_group", self.topk_group)];
        let missing = groups.into_iter().find(|(_, value)| value.unwrap_or(0) == 0);
        match missing.filter(|_| self.topk_method == Some(TopkMethod::GroupLimitedGreedy)) {
            Some((name, _)) => Err(error::config(format!(
                "`{name}` is missing, but `topk_method` is `group_limited_greedy`; expected at least 1"
            ))),
            None => Ok(()),
        }
    }

    /// Checks that a setting, if it is given, has a value that this kind of model has.
    fn check_choice<T: Copy + PartialEq + Serialize>(
        &self,
        name: &str,
        given: Option<T>,
        choices: &[T],
    ) -> Result<()> {
        let Some(given) = given.filter(|given| !choices.contains(given)) else { return Ok(()) };
        let shown = |value: Value| format!("`{}`", value.as_str().unwrap_or_default());
        let expected: Vec<String> = choices.iter().map(|choice| shown(json!(choice))).collect();
        Err(error::config(format!(
            "`{name}` is {}, expected {} for {}",
            shown(json!(given)),
            expected.join(" or "),
            shown(json!(self.model_type)),
        )))
    }

    /// Checks the numbers of features in DeepSeek's attention.
    pub(super) fn check_latent_attention(&self) -> Result<()> {
        if !self.has_latent_attention() {
            return Ok(());
        }
        let sizes = [
            ("kv_lora_rank", self.kv_lora_rank),
            ("qk_nope_head_dim", self.qk_nope_head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("v_head_dim", self.v_head_dim),
        ];
        let given = self.q_lora_rank.map(|rank| ("q_lora_rank", Some(rank)));
        let missing = sizes.into_iter().chain(given).find(|(_, value)| value.unwrap_or(0) == 0);
        if let Some((name, value)) = missing {
            let found = value.map_or("missing", |_| "0");
            return Err(error::config(format!("`{name}` is {found}, expected at least 1")));
        }
        let sizes = self.latent_sizes();
        if !sizes.rotated.is_multiple_of(2) {
            return Err(error::config(format!(
                "`qk_rope_head_dim` is {}, expected an even number",
                sizes.rotated
            )));
        }
        // transformers writes both, and computes them when it reads them.
        let written = self.other.get("qk_head_dim").and_then(Value::as_u64);
        let computed = [
            ("head_dim", self.head_dim, sizes.rotated, "`qk_rope_head_dim`"),
            ("qk_head_dim", written.map(|n| n as usize), sizes.query(), "the sum of both parts"),
        ];
        for (name, value, expected, what) in computed {
            if let Some(value) = value.filter(|value| *value != expected) {
                return Err(error::config(format!(
                    "`{name}` is {value}, expected {expected}, {what}; remove it"
                )));
            }
        }
        let heads = self.num_attention_heads;
        let of_head = sizes.query().saturating_add(sizes.value).saturating_add(sizes.keys);
        if heads.checked_mul(of_head).is_none() {
            return Err(error::config(format!(
                "`num_attention_heads` is {heads}, too many for heads of {of_head} features"
            )));
        }
        if self.key_heads() != heads {
            return Err(error::config(format!(
                "`num_key_value_heads` is {}, expected {heads}, which is `num_attention_heads`: each head has keys of its own",
                self.key_heads()
            )));
        }
        Ok(())
    }
}
