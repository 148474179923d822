"""Mutants of experts on a projection of the hidden states: rows as in table.py."""

MUTANTS = [
    ("latent_experts_of_the_models_width", "config/experts.cpp", "model.moe_latent_size > 0 ? model.moe_latent_size : model.hidden_size", "model.hidden_size", "config_test ExpertRows*", "expr"),
    ("latent_projection_without_bias", "moe/experts_layer.cpp", '"fc1_latent_proj", hidden, latent, model.mlp_bias()', '"fc1_latent_proj", hidden, latent, false', "run_test LatentExperts.HaveTheNames*"),
    ("latent_projection_back_is_no_parameter", "moe/experts_layer.cpp", "if (layer_->from_latent) layer_->from_latent->collect_params(params);", "static_cast<void>(params);", "run_test LatentExperts.HaveTheNames*", "stmt"),
    ("latent_projection_back_begins_too_large", "moe/experts_layer.cpp", "  back.init = nn::Init::scaled_normal;\n", "", "run_test LatentExperts.HaveTheNames*", "stmt"),
    ("latent_projections_cost_nothing", "plan/model_flops.cpp", " + 2 * hidden * latent", "", "metroplex_vectors flops_memory.json; run_test LatentExperts.Flops*"),
    ("latent_experts_cost_the_models_width", "plan/model_flops.cpp", "routed = latent > 0 ? latent : hidden;", "routed = hidden;", "metroplex_vectors flops_memory.json; run_test LatentExperts.Flops*"),
    ("idle_latent_experts_of_the_models_width", "plan/model_flops.cpp", "expert.latent_size > 0 ? expert.latent_size : shape.hidden_size", "shape.hidden_size", "plan_test ModelShape*", "expr"),
    ("adapters_of_latent_experts_of_the_models_width", "config/peft.cpp", "is_routed(module) ? expert_row_width(m) : m.hidden_size", "m.hidden_size", "config_test Peft*", "expr"),
    ("latent_projections_have_no_adapters", "config/peft.cpp", "  if (model.moe_latent_size > 0) words.insert(words.end(), std::begin(kLatentWords), std::end(kLatentWords));\n", "", "config_test Peft*", "stmt"),
    ("biases_of_latent_projections_do_not_count", "config/model_function.cpp", " && m.moe_latent_size == 0", "", "config_test ExpertRows*"),
    ("rows_are_sent_before_their_projection", "moe/experts_layer.cpp", "const at::Tensor x = project(layer_->to_latent, values.input.input(), context.batch);", "const at::Tensor x = values.input.tensor();", "run_test LatentExperts.SentRows*; metroplex_hf_parity nemotron_h_latent"),
    ("exports_lose_the_latent_size", "hf/families/nemotron_h.cpp", "json[\"moe_latent_size\"] = m.moe_latent_size > 0 ? Json(m.moe_latent_size) : Json();", "", "metroplex_hf_parity nemotron_h_latent"),
    ("stash_of_the_models_width", "moe/experts.cpp", "const int64_t width = hidden + fc1_.local_shape[1] + activated;", "const int64_t width = model.hidden_size + fc1_.local_shape[1] + activated;", "run_test LatentExperts.StaticBuffersStash*", "stmt"),
    ("no_family_stops_the_search", "hf/family_represents.cpp", "    return false;  // the family rejects a value of its own config.json", "    throw;", "hf_test HfFamily*", "stmt"),
]
