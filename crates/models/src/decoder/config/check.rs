//! Checks that settings fit together, and that a file has none of another kind of model.

use super::{Config, LayerType, ModelType};

use crate::attention::{Setting, check_heads};
use crate::settings::same_json;
use crate::{Result, error};

impl Config {
    /// Checks the settings.
    pub(in crate::decoder) fn check(&self) -> Result<()> {
        let Config { num_attention_heads: heads, num_hidden_layers: layers, .. } = *self;
        check_heads(
            Setting::new("num_key_value_heads", self.key_heads()),
            Setting::new("num_attention_heads", heads),
        )?;
        if self.sliding_window_pattern == Some(0) {
            return Err(error::config("`sliding_window_pattern` is 0, expected at least 1"));
        }
        self.check_latent_attention()?;
        self.check_experts()?;
        self.check_router()?;
        let types = self.layer_types.as_deref().unwrap_or_default();
        if self.layer_types.is_some() && types.len() != layers {
            return Err(error::config(format!(
                "`layer_types` has {} entries, `num_hidden_layers` is {layers}",
                types.len()
            )));
        }
        if types.contains(&LayerType::SlidingAttention) && self.window().is_none() {
            return Err(error::config(
                "`layer_types` has `sliding_attention`, but no `sliding_window` is in use",
            ));
        }
        self.check_unused()
    }

    fn check_experts(&self) -> Result<()> {
        if !self.is_mixture() {
            return Ok(());
        }
        if self.decoder_sparse_step == Some(0) {
            return Err(error::config("`decoder_sparse_step` is 0, expected at least 1"));
        }
        let experts = self.experts();
        let per_token = self.num_experts_per_tok;
        if experts > 0 && per_token.is_none_or(|per_token| !(1..=experts).contains(&per_token)) {
            let found = per_token.map_or("missing".to_owned(), |per_token| per_token.to_string());
            return Err(error::config(format!(
                "`num_experts_per_tok` is {found}, expected from 1 to {experts}, the number of experts"
            )));
        }
        let needed = ["n_routed_experts", "n_shared_experts"];
        let given = [self.n_routed_experts, self.n_shared_experts];
        let missing = needed.iter().zip(given).find(|(_, value)| value.unwrap_or(0) == 0);
        if let Some((name, _)) = missing.filter(|_| self.has_deepseek_experts()) {
            return Err(error::config(format!("`{name}` is missing, expected at least 1")));
        }
        Ok(())
    }

    /// Checks that settings which this kind of model does not have are at their defaults: a file
    /// with another value means another model.
    fn check_unused(&self) -> Result<()> {
        let given = serde_json::to_value(self).map_err(|e| error::config(e.to_string()))?;
        for setting in &UNUSED_SETTINGS {
            let value = &given[setting.name];
            if setting.families.contains(&self.model_type)
                || value.is_null()
                || same_json(value, setting.default)
            {
                continue;
            }
            let name = setting.name;
            let default = setting.default;
            return Err(error::config(format!(
                "`{name}` is {value}; in this kind of model, only {default} is supported"
            )));
        }
        Ok(())
    }
}
/// A setting that only some kinds of model have.
struct FamilySetting {
    name: &'static str,
    /// The only value in other kinds, in JSON.
    default: &'static str,
    families: &'static [ModelType],
}

const UNUSED_SETTINGS: [FamilySetting; 37] = {
    use ModelType::{
        DeepseekV2, DeepseekV3, Dots1, Gemma, Gemma2, Gemma3, Glm4Moe, Llama, Mistral, Mixtral,
        Qwen2, Qwen2Moe, Qwen3, Qwen3Moe,
    };
    const MIXTURES: [ModelType; 7] =
        [Mixtral, Qwen2Moe, Qwen3Moe, Dots1, Glm4Moe, DeepseekV2, DeepseekV3];
    const SMALL_EXPERTS: [ModelType; 6] =
        [Qwen2Moe, Qwen3Moe, Dots1, Glm4Moe, DeepseekV2, DeepseekV3];
    const DEEPSEEK_EXPERTS: [ModelType; 4] = [Dots1, Glm4Moe, DeepseekV2, DeepseekV3];
    const DEEPSEEK: [ModelType; 2] = [DeepseekV2, DeepseekV3];
    const fn setting(
        name: &'static str,
        default: &'static str,
        families: &'static [ModelType],
    ) -> FamilySetting {
        FamilySetting { name, default, families }
    }
    [
        setting(
            "attention_bias",
            "false",
            &[
                Llama, Qwen3, Gemma, Gemma2, Gemma3, Qwen3Moe, Dots1, Glm4Moe, DeepseekV2,
                DeepseekV3,
            ],
        ),
        setting("mlp_bias", "false", &[Llama]),
        // transformers' Gemma ignores this one, and published folders have it.
        setting("hidden_activation", "null", &[Gemma, Gemma2, Gemma3]),
        setting(
            "sliding_window",
            "null",
            &[Mistral, Qwen2, Qwen3, Gemma2, Gemma3, Mixtral, Qwen2Moe, Qwen3Moe, Dots1],
        ),
        setting("use_sliding_window", "false", &[Qwen2, Qwen3, Qwen2Moe, Qwen3Moe]),
        setting("sliding_window_pattern", "2", &[Gemma3]),
        setting("rope_local_base_freq", "null", &[Gemma3]),
        // transformers' other models ignore it, or stop; vLLM's rotate a part.
        setting("partial_rotary_factor", "1", &[Glm4Moe]),
        setting("use_qk_norm", "false", &[Glm4Moe]),
        setting("query_pre_attn_scalar", "null", &[Gemma2, Gemma3]),
        setting("attn_logit_softcapping", "null", &[Gemma2, Gemma3]),
        setting("final_logit_softcapping", "null", &[Gemma2, Gemma3]),
        setting("num_local_experts", "null", &[Mixtral, Qwen3Moe]),
        setting("num_experts", "null", &[Qwen2Moe, Qwen3Moe]),
        setting("n_routed_experts", "null", &DEEPSEEK_EXPERTS),
        setting("num_experts_per_tok", "null", &MIXTURES),
        setting("moe_intermediate_size", "null", &SMALL_EXPERTS),
        setting("shared_expert_intermediate_size", "null", &[Qwen2Moe]),
        setting("n_shared_experts", "null", &DEEPSEEK_EXPERTS),
        setting("norm_topk_prob", "null", &SMALL_EXPERTS),
        setting("decoder_sparse_step", "null", &[Qwen2Moe, Qwen3Moe]),
        setting("mlp_only_layers", "null", &[Qwen2Moe, Qwen3Moe]),
        setting("first_k_dense_replace", "null", &DEEPSEEK_EXPERTS),
        setting("n_group", "null", &DEEPSEEK_EXPERTS),
        setting("topk_group", "null", &DEEPSEEK_EXPERTS),
        setting("routed_scaling_factor", "null", &DEEPSEEK_EXPERTS),
        setting("q_lora_rank", "null", &DEEPSEEK),
        setting("kv_lora_rank", "null", &DEEPSEEK),
        setting("qk_nope_head_dim", "null", &DEEPSEEK),
        setting("qk_rope_head_dim", "null", &DEEPSEEK),
        setting("v_head_dim", "null", &DEEPSEEK),
        setting("rope_interleave", "null", &[DeepseekV3]),
        setting("topk_method", "null", &DEEPSEEK),
        setting("scoring_func", "null", &DEEPSEEK),
        setting("output_router_logits", "false", &MIXTURES),
        setting("router_aux_loss_coef", "null", &MIXTURES),
        setting("qkv_bias", "null", &[Qwen2Moe]),
    ]
};
