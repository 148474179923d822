// Results of our model for a Hugging Face directory on a layout, for the tokens of its expected.json: the logits, the
// loss, the gradients under the names of the directory, the choice of experts, and a greedy continuation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::hf_parity {

using Tokens = std::vector<std::vector<int64_t>>;

struct Layout {
  int64_t tp = 1, pp = 1, ep = 1, cp = 1;
  int64_t ranks() const { return tp * pp * ep * cp; }
  bool sp = false, forward_only = false;
};

struct Routing {
  std::map<int64_t, std::vector<int64_t>> experts;  // by token, sequence after sequence
  std::map<int64_t, std::vector<double>> weights;
};

struct ModelRun {
  double loss = 0;
  std::vector<at::Tensor> logits;               // of each sequence, [s, V] in double
  std::map<std::string, at::Tensor> gradients;  // theirs, in double
  std::map<int64_t, Routing> routing;           // by layer; not with tp or cp above 1
  std::vector<int64_t> generated;
};

enum class Fault { none, zero_tensor, scaled_norm };

// The directory of adapters that PEFT saved in the folder adapter of a model; "" if there is none.
std::string find_adapters(const std::string& directory);
// The config with sections model, data and peft of the directory and its adapters, in fp32, without dropout, on the
// layout, resolved.
config::Config make_config(const std::string& directory, const Layout& layout, int64_t sequences, int64_t length);
ModelRun run_model(const std::string& directory, const Layout& layout, const Tokens& tokens,
                   const std::vector<int64_t>& prompt, int64_t new_tokens, Fault fault);
// Logits for a Hugging Face directory without its adapters, or for our checkpoint or a folder of them. They are
// computed in fp32 and returned for each sequence as [s, V] in double, on the tp and pp ranks of the layout. Reads
// the main parameters of a checkpoint that has them.
std::vector<at::Tensor> compute_logits(const std::string& path, const Layout& layout, const Tokens& tokens,
                                       Fault fault = Fault::none);
// Loads the directory in its stored format, saves a checkpoint on the layout, and writes that as a directory again.
// Adapters are merged, and written alone to <out>_adapters.
void write_again(const std::string& directory, const Layout& layout, const std::string& checkpoint,
                 const std::string& out);

}  // namespace metroplex::hf_parity
