//! The defaults of each kind of model.

use super::{Config, ModelType, TopkMethod};

impl Config {
    /// The defaults of a kind of model, those of its configuration class in transformers.
    ///
    /// ```
    /// use fulmen_models::decoder::{Config, ModelType};
    ///
    /// let config = Config::new(ModelType::Gemma2);
    /// assert_eq!(config.attn_logit_softcapping, Some(50.0));
    /// ```
    pub fn new(model_type: ModelType) -> Config {
        let config = Config { model_type, ..Config::default() };
        match model_type {
            ModelType::Llama => config,
            ModelType::Mistral => Config {
                intermediate_size: 14336,
                num_key_value_heads: Some(8),
                max_position_embeddings: 131_072,
                sliding_window: Some(4096),
                ..config
            },
            ModelType::Qwen2 | ModelType::Qwen3 => Config {
                vocab_size: 151_936,
                intermediate_size: 22016,
                num_key_value_heads: Some(32),
                head_dim: (model_type == ModelType::Qwen3).then_some(128),
                max_position_embeddings: 32768,
                sliding_window: Some(4096),
                max_window_layers: Some(28),
                ..config
            },
            ModelType::Mixtral
            | ModelType::Qwen2Moe
            | ModelType::Qwen3Moe
            | ModelType::Dots1
            | ModelType::Glm4Moe
            | ModelType::DeepseekV2
            | ModelType::DeepseekV3 => config.of_experts(),
            ModelType::Gemma => Config {
                vocab_size: 256_000,
                hidden_size: 3072,
                intermediate_size: 24576,
                num_hidden_layers: 28,
                num_attention_heads: 16,
                num_key_value_heads: Some(16),
                head_dim: Some(256),
                max_position_embeddings: 8192,
                ..config
            },
            ModelType::Gemma2 => Config {
                vocab_size: 256_000,
                hidden_size: 2304,
                intermediate_size: 9216,
                num_hidden_layers: 26,
                num_attention_heads: 8,
                num_key_value_heads: Some(4),
                head_dim: Some(256),
                max_position_embeddings: 8192,
                sliding_window: Some(4096),
                query_pre_attn_scalar: Some(256),
                attn_logit_softcapping: Some(50.0),
                final_logit_softcapping: Some(30.0),
                ..config
            },
            ModelType::Gemma3 => Config {
                model_type,
                vocab_size: 262_208,
                max_position_embeddings: 131_072,
                attn_logit_softcapping: None,
                final_logit_softcapping: None,
                ..Config::new(ModelType::Gemma2)
            },
        }
    }

    /// The defaults of a kind of model that has experts, from Llama's.
    fn of_experts(self) -> Config {
        let config = self;
        match config.model_type {
            ModelType::Mixtral => Config {
                intermediate_size: 14336,
                num_key_value_heads: Some(8),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                num_local_experts: Some(8),
                num_experts_per_tok: Some(2),
                ..config.with_router()
            },
            ModelType::Qwen2Moe => Config {
                vocab_size: 151_936,
                hidden_size: 2048,
                intermediate_size: 5632,
                num_hidden_layers: 24,
                num_attention_heads: 16,
                num_key_value_heads: Some(16),
                max_position_embeddings: 32768,
                sliding_window: Some(4096),
                max_window_layers: Some(28),
                qkv_bias: Some(true),
                num_experts: Some(60),
                num_experts_per_tok: Some(4),
                moe_intermediate_size: Some(1408),
                shared_expert_intermediate_size: Some(5632),
                norm_topk_prob: Some(false),
                decoder_sparse_step: Some(1),
                ..config.with_router()
            },
            ModelType::Qwen3Moe => Config {
                vocab_size: 151_936,
                hidden_size: 2048,
                intermediate_size: 6144,
                num_hidden_layers: 24,
                num_key_value_heads: Some(4),
                max_position_embeddings: 32768,
                sliding_window: Some(4096),
                num_experts_per_tok: Some(8),
                moe_intermediate_size: Some(768),
                norm_topk_prob: Some(false),
                decoder_sparse_step: Some(1),
                ..config.with_router()
            },
            _ => config.of_deepseek_experts(),
        }
    }

    /// The defaults of models with DeepSeek's experts.
    fn of_deepseek_experts(self) -> Config {
        let config = Config { output_router_logits: Some(false), ..self };
        match config.model_type {
            ModelType::Dots1 => Config {
                vocab_size: 152_064,
                hidden_size: 4608,
                intermediate_size: 10944,
                num_hidden_layers: 62,
                num_key_value_heads: Some(32),
                sliding_window: Some(4096),
                max_window_layers: Some(62),
                moe_intermediate_size: Some(1408),
                norm_topk_prob: Some(false),
                n_group: Some(1),
                topk_group: Some(1),
                first_k_dense_replace: Some(0),
                routed_scaling_factor: Some(1.0),
                ..config
            },
            ModelType::Glm4Moe => Config {
                vocab_size: 151_552,
                intermediate_size: 10944,
                num_hidden_layers: 46,
                num_attention_heads: 96,
                num_key_value_heads: Some(8),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                use_qk_norm: Some(false),
                num_experts_per_tok: Some(8),
                moe_intermediate_size: Some(1408),
                n_routed_experts: Some(128),
                n_shared_experts: Some(1),
                norm_topk_prob: Some(true),
                n_group: Some(1),
                topk_group: Some(1),
                first_k_dense_replace: Some(1),
                routed_scaling_factor: Some(1.0),
                ..config
            },
            _ => config.of_latent_attention(),
        }
    }

    /// The defaults of DeepSeek's own models.
    fn of_latent_attention(self) -> Config {
        let config = Config {
            q_lora_rank: Some(1536),
            kv_lora_rank: Some(512),
            qk_nope_head_dim: Some(128),
            qk_rope_head_dim: Some(64),
            v_head_dim: Some(128),
            ..self
        };
        match config.model_type {
            ModelType::DeepseekV2 => Config {
                vocab_size: 102_400,
                moe_intermediate_size: Some(1407),
                n_routed_experts: Some(64),
                n_shared_experts: Some(2),
                norm_topk_prob: Some(false),
                first_k_dense_replace: Some(0),
                routed_scaling_factor: Some(1.0),
                topk_method: Some(TopkMethod::Greedy),
                ..config
            },
            ModelType::DeepseekV3 => Config {
                vocab_size: 129_280,
                hidden_size: 7168,
                intermediate_size: 18432,
                num_hidden_layers: 61,
                num_attention_heads: 128,
                num_key_value_heads: Some(128),
                max_position_embeddings: 4096,
                rope_interleave: Some(true),
                num_experts_per_tok: Some(8),
                moe_intermediate_size: Some(2048),
                n_routed_experts: Some(256),
                n_shared_experts: Some(1),
                norm_topk_prob: Some(true),
                n_group: Some(8),
                topk_group: Some(4),
                first_k_dense_replace: Some(3),
                routed_scaling_factor: Some(2.5),
                ..config
            },
            _ => config,
        }
    }

    fn with_router(self) -> Config {
        let router_aux_loss_coef = Some(0.001);
        Config { output_router_logits: Some(false), router_aux_loss_coef, ..self }
    }
}
