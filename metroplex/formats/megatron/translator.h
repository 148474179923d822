// Builds the assignments of a command line: each flag's own keys, then the keys that depend on several flags, as
// validate_args and core_transformer_config_from_args of Megatron derive them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/load.h"
#include "megatron/flags.h"

namespace metroplex::megatron {

bool is_zero(const std::string& value);

class Translator {
 public:
  Translator(const std::vector<GivenFlag>& flags, Form form) : flags_(flags), whole_(form == Form::kWholeCommand) {}
  Arguments run();

 private:
  static constexpr const char* kVpp = "parallel.virtual_pipeline_model_parallel_size";

  void apply(const GivenFlag& given);
  void set(const std::string& pair, const std::string& value, const std::string& flag);
  void derive(const std::string& pair, const std::string& value, const std::string& flag);
  void ignore(const std::string& flag, const std::string& why);
  void drop(const char* key, const char* why);

  bool later(const char* key) const { return pending_keys_.contains(key); }
  bool given(const char* key) const { return out_.given_by.contains(key); }
  bool assigned(const char* key, const char* value) const;
  int64_t number(const std::string& key) const;
  std::vector<std::string> words(const std::string& name) const;
  config::Config draft() const;

  // Model and data (translator_model.cpp).
  void heads();
  void attention_variant();
  void normalization();
  void biases();
  void activation();
  void experts();
  void hybrid_layers();
  void window();
  void positions();
  void yarn_type();
  void yarn_frequencies(bool used);
  void latent_attention();
  void attention_mask();
  void tokenizer();
  void padded_vocabulary(bool own_vocabulary);
  void context_parallel_algorithm();

  // Other keys (translator_flags.cpp).
  void precision();
  void fsdp_gradients();
  void logits();
  void optimizer();
  void optimizer_state();
  void wsd_decay();
  std::string zero_strategy();
  std::string torch_strategy() const { return later("fsdp2_keeps_weights") ? "optim_grads" : "optim_grads_params"; }
  void sharding();
  void gradient_sums();
  void param_gather();
  void recompute();
  void recomputed_layers();
  void evaluation();
  void graphs();
  void virtual_stages();
  int64_t count_virtual_stages();
  void whole_command();

  const std::vector<GivenFlag>& flags_;
  const bool whole_;
  std::map<std::string, std::string> assigned_;
  std::map<std::string, std::string> pending_keys_;
  // Key -> the first flag that set it, with its value.
  std::map<std::string, std::pair<std::string, std::string>> setters_;
  Arguments out_;
};

}  // namespace metroplex::megatron
