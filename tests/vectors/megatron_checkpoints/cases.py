"""The models and cases that record.py records."""
MODELS = {
    "gpt": {
        "num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "ffn_hidden_size": 24, "vocab_size": 40, "max_position_embeddings": 16,
        "position_embedding_type": "learned_absolute", "normalization": "LayerNorm", "swiglu": False, "add_bias_linear": True,
        "untie_embeddings_and_output_weights": False},
    "llama": {
        "num_layers": 4, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "ffn_hidden_size": 24, "vocab_size": 40,
        "max_position_embeddings": 16, "position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False,
        "add_qkv_bias": True, "untie_embeddings_and_output_weights": True},
    "moe": {
        "num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "ffn_hidden_size": 24, "vocab_size": 40,
        "max_position_embeddings": 16, "position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False,
        "qk_layernorm": True, "untie_embeddings_and_output_weights": True, "num_experts": 4, "moe_ffn_hidden_size": 8, "moe_router_topk": 2, "moe_layer_freq": [0, 1],
        "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True, "moe_shared_expert_intermediate_size": 8},
    "latent": {
        "num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "ffn_hidden_size": 24, "vocab_size": 40, "max_position_embeddings": 16,
        "position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False, "qk_layernorm": True,
        "untie_embeddings_and_output_weights": True, "multi_latent_attention": True, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_head_dim": 4,
        "qk_pos_emb_head_dim": 4, "v_head_dim": 4, "rope_type": "rope"},
    "trained": {
        "num_layers": 1, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "ffn_hidden_size": 24, "vocab_size": 40,
        "max_position_embeddings": 16, "position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True, "bf16": True},
    "adam": {
        "num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "ffn_hidden_size": 24, "vocab_size": 40,
        "max_position_embeddings": 16, "position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False,
        "add_qkv_bias": True, "untie_embeddings_and_output_weights": False, "bf16": True},
    "adam_moe": {
        "num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "num_query_groups": 2, "ffn_hidden_size": 24, "vocab_size": 40,
        "max_position_embeddings": 16, "position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False,
        "qk_layernorm": True, "untie_embeddings_and_output_weights": True, "num_experts": 4, "moe_ffn_hidden_size": 8, "moe_router_topk": 2, "moe_layer_freq": [0, 1],
        "moe_router_score_function": "sigmoid", "bf16": True},
}
# case: model, layout, format. "stacked" is torch_dist with one tensor for all layers. "single" has separate layers, experts,
# gates, and ups. The cases of bf16 models have the state of AdamW after two steps; with dp, that of the distributed optimizer, whose
# buckets are divided at bucket_size. "dp_reshardable" stores the buckets in torch_dist, "model_space" (fully_sharded_model_space) flat
# shards, with torch 2.9 and higher without their original shapes.
CASES = {
    "gpt_dist": ("gpt", {}, "stacked"),
    "gpt_legacy": ("gpt", {}, "legacy"),
    "gpt_legacy_tp2": ("gpt", {"tp": 2}, "legacy"),
    "llama_dist": ("llama", {}, "each_layer"),
    "llama_dist_tp2_pp2": ("llama", {"tp": 2, "pp": 2}, "stacked"),
    "llama_dcp_dp2": ("llama", {"dp": 2}, "dcp"),
    "plain_dcp": ("llama", {}, "dcp_without_args"),
    "llama_legacy_tp2_pp2": ("llama", {"tp": 2, "pp": 2}, "legacy"),
    "llama_legacy_pp2_vpp2": ("llama", {"pp": 2, "vpp": 2}, "legacy"),
    "moe_dist_ep2": ("moe", {"ep": 2}, "stacked"),
    "moe_legacy_ep2": ("moe", {"ep": 2}, "legacy"),
    "moe_dist_single": ("moe", {}, "single"),
    "latent_dist_tp2": ("latent", {"tp": 2}, "stacked"),
    "latent_legacy_tp2": ("latent", {"tp": 2}, "legacy"),
    "trained_dist": ("trained", {}, "stacked"),
    "trained_dist_dp2": ("trained", {"dp": 2}, "stacked"),
    "adam_legacy_tp2_pp2": ("adam", {"tp": 2, "pp": 2}, "legacy"),
    "adam_legacy_tp2_dp2": ("adam", {"tp": 2, "dp": 2, "bucket_size": 650}, "legacy"),
    "adam_legacy_pp2_dp2": ("adam", {"pp": 2, "dp": 2}, "legacy"),
    "adam_buckets_tp2_pp2": ("adam", {"tp": 2, "pp": 2, "dp": 1}, "dp_reshardable"),
    "adam_buckets_dp2": ("adam", {"dp": 2, "bucket_size": 1000}, "dp_reshardable"),
    "adam_space_tp2_dp2": ("adam", {"tp": 2, "dp": 2, "bucket_size": 650}, "model_space"),
    "adam_space_pp2": ("adam", {"pp": 2, "dp": 1}, "model_space_torch_2.9"),
    "adam_fsdp_dp2": ("adam", {"dp": 2}, "fsdp"),
    "adam_moe_legacy_ep2": ("adam_moe", {"ep": 2}, "legacy"),
    "adam_moe_legacy_ep2_dp2": ("adam_moe", {"ep": 2, "dp": 1}, "legacy"),
    "adam_moe_space_ep2_dp2": ("adam_moe", {"ep": 2, "dp": 2}, "model_space"),
    "adam_moe_buckets_ep2": ("adam_moe", {"ep": 2, "dp": 1}, "dp_reshardable"),
}
