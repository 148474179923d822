// Keys of config.json for Mamba-2 layers that several families share.
#include "hf/decoder.h"

namespace metroplex::hf {

Json infinity() { return {{"__float__", "Infinity"}}; }

void add_mamba(const ConfigReader& config, const char* activation, int64_t chunk_size, Settings& settings) {
  const std::string act = config.text(activation, "silu");
  config.require(act == "silu" || act == "swish", activation, "silu");
  set(settings, "mamba_conv_kernel_dim", config.integer("conv_kernel", 4));
  set(settings, "mamba_conv_bias", config.flag("use_conv_bias", true));
  set(settings, "mamba_chunk_size", config.integer("chunk_size", chunk_size));
}

void add_mamba_config(const config::Model& m, Json& json) {
  json["conv_kernel"] = m.mamba_conv_kernel_dim;
  json["use_conv_bias"] = m.mamba_conv_bias;
  json["chunk_size"] = m.mamba_chunk_size;
}

std::pair<double, double> time_step_limits(const ConfigReader& config) {
  if (!config.has("time_step_limit")) return {0, 0};
  const Json& list = config.value("time_step_limit");
  const bool pair = list.is_array() && list.size() == 2 && list[0].is_number() && list[0] >= 0.0;
  config.require(pair && (list[1] == infinity() || (list[1].is_number() && list[1] > 0.0)), "time_step_limit",
                 "two numbers of at least 0, or Infinity as the second");
  return {list[0].get<double>(), list[1].is_number() ? list[1].get<double>() : 0};
}

}  // namespace metroplex::hf
