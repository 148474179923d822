// One pre-norm transformer layer as one segment: h = x + dropout(attention(norm(x))), y = h + dropout(mlp(norm(h))).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/model.h"
#include "nn/attention.h"
#include "nn/dropout.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "nn/segment.h"

namespace metroplex::models {

// Of a norm over what the ranks of context.sp split.
nn::NormSpec norm_spec(const std::string& name, const config::Model& model, const nn::LayerContext& context);
// Null where the model has no rotary positions. One table serves all layers of a stage.
std::shared_ptr<nn::RopeTable> make_rope(const config::Model& model, const cuda::Target& target);

struct BlockSpec {
  std::string name;   // decoder.layers.<global number>
  int64_t layer = 0;  // global number: key of dropout and of the cache
};

class Block final : public nn::Segment {
 public:
  Block(const BlockSpec& spec, const config::Model& model, const nn::LayerContext& context,
        std::shared_ptr<nn::RopeTable> rope);

  const std::string& name() const override { return spec_.name; }
  at::Tensor forward(const at::Tensor& x_sbh, const nn::Microbatch& batch) override;
  void collect_params(std::vector<nn::Param*>& params) override;
  bool is_block() const override { return true; }

 private:
  BlockSpec spec_;
  comm::Group sp_;
  nn::SavePolicy saving_;
  nn::DropoutKey attention_dropout_, mlp_dropout_;
  nn::Norm input_norm_;
  nn::SelfAttention attention_;
  nn::Norm mlp_norm_;
  nn::Mlp mlp_;
};

}  // namespace metroplex::models
