// layer_overhead [iterations] [hidden] [sequence] [batch]: the overhead of our layers over the same arithmetic in
// plain at:: operators with autograd. Uses a 2-layer GPT, small enough that bookkeeping overhead is visible. One
// thread, fp32; both variants alternate in one process. Prints a Markdown table of medians in microseconds.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "step/step.h"
#include "timing.h"

namespace {

using namespace metroplex;

constexpr int64_t kLayers = 2, kHeads = 4, kVocabulary = 256;
constexpr double kLearningRate = 1e-4;

struct Sizes {
  int64_t iterations = 2000, hidden = 64, sequence = 16, batch = 1;
};

config::Config toy(const Sizes& sizes) {
  config::Config config;
  config.model.num_layers = kLayers;
  config.model.hidden_size = sizes.hidden;
  config.model.num_attention_heads = kHeads;
  config.model.vocab_size = kVocabulary;
  config.model.activation = "gelu_tanh";
  config.train.seq_length = sizes.sequence;
  config.train.micro_batch_size = sizes.batch;
  config.train.global_batch_size = sizes.batch;
  config.train.train_iters = 1000000;
  config.optim.lr = kLearningRate;
  config.optim.lr_decay_style = "constant";
  config.optim.weight_decay = 0;
  config.optim.clip_grad = 0;
  config.data.mock_data = true;
  config::check(config, 1);
  return config::resolved(config, 1);
}

nn::Microbatch random_batch(const Sizes& sizes) {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, kVocabulary, {sizes.batch, sizes.sequence}, at::kLong);
  batch.labels = at::randint(0, kVocabulary, {sizes.batch, sizes.sequence}, at::kLong);
  batch.position_ids = at::arange(sizes.sequence, at::kLong).expand({sizes.batch, sizes.sequence}).contiguous();
  batch.loss_mask = at::ones({sizes.batch, sizes.sequence});
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.counters.samples = nn::make_sample_counters(0, at::arange(sizes.batch, at::kLong));
  return batch;
}

// The same model in at:: operators, with copies of our parameters.
class LibtorchLayers {
 public:
  explicit LibtorchLayers(const std::vector<nn::Param*>& params) {
    for (const nn::Param* param : params) {
      const at::Tensor leaf = param->data.detach().clone().requires_grad_(true);
      by_name_[param->name] = leaf;
      leaves_.push_back(leaf);
      first_.push_back(at::zeros_like(param->data));
      second_.push_back(at::zeros_like(param->data));
      steps_.push_back(at::zeros({}, at::kFloat));
    }
    for (int64_t layer = 0; layer < kLayers; ++layer) blocks_.push_back(block_weights(layer));
    words_ = by_name_.at("embedding.word_embeddings.weight");
    positions_ = by_name_.at("embedding.position_embeddings.weight");
    final_ = {by_name_.at("decoder.final_layernorm.weight"), by_name_.at("decoder.final_layernorm.bias")};
  }

  at::Tensor blocks(at::Tensor x) const {
    for (const Weights& w : blocks_) x = block(x, w);
    return x;
  }

  at::Tensor loss(const nn::Microbatch& batch) const {
    at::Tensor x = at::embedding(words_, batch.tokens.t()) + at::embedding(positions_, batch.position_ids.t());
    x = at::layer_norm(blocks(x), {x.size(2)}, final_.weight, final_.bias);
    return at::cross_entropy_loss(at::linear(x, words_).flatten(0, 1), batch.labels.t().reshape({-1}));
  }

  void clear_gradients() {
    for (at::Tensor& leaf : leaves_) leaf.mutable_grad() = at::Tensor();
  }

  // The part of a training step after backward: the gradient norm, which ours also prints, and AdamW.
  double update() {
    std::vector<at::Tensor> data, gradients;
    for (const at::Tensor& leaf : leaves_) {
      data.push_back(leaf.detach());
      gradients.push_back(leaf.grad());
    }
    const double norm = at::stack(at::_foreach_norm(gradients)).norm().item<double>();
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(data, gradients, first_, second_, {}, steps_, kLearningRate, 0.9, 0.999, 0.0, 1e-8, false,
                      false);
    return norm;
  }

  const at::Tensor& gradient(const std::string& name) const { return by_name_.at(name).grad(); }

 private:
  struct Affine {
    at::Tensor weight, bias;
  };
  struct Weights {
    Affine input_norm, qkv, proj, mlp_norm, fc1, fc2;
  };

  Weights block_weights(int64_t layer) const {
    const std::string prefix = "decoder.layers." + std::to_string(layer) + ".";
    const auto affine = [&](const std::string& name) {
      return Affine{by_name_.at(prefix + name + ".weight"), by_name_.at(prefix + name + ".bias")};
    };
    return {affine("input_layernorm"),
            affine("self_attention.linear_qkv"),
            affine("self_attention.linear_proj"),
            affine("pre_mlp_layernorm"),
            affine("mlp.linear_fc1"),
            affine("mlp.linear_fc2")};
  }

  static at::Tensor block(const at::Tensor& x, const Weights& w) {
    const int64_t s = x.size(0), b = x.size(1), h = x.size(2), d = h / kHeads;
    const at::Tensor n = at::layer_norm(x, {h}, w.input_norm.weight, w.input_norm.bias);
    const auto qkv =
        at::linear(n, w.qkv.weight, w.qkv.bias).view({s, b, kHeads, 3 * d}).permute({1, 2, 0, 3}).split(d, -1);
    const at::Tensor attended = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true);
    const at::Tensor joined = attended.permute({2, 0, 1, 3}).reshape({s, b, h});
    const at::Tensor mid = x + at::linear(joined, w.proj.weight, w.proj.bias);
    const at::Tensor m = at::layer_norm(mid, {h}, w.mlp_norm.weight, w.mlp_norm.bias);
    return mid + at::linear(at::gelu(at::linear(m, w.fc1.weight, w.fc1.bias), "tanh"), w.fc2.weight, w.fc2.bias);
  }

  std::map<std::string, at::Tensor> by_name_;
  std::vector<at::Tensor> leaves_, first_, second_, steps_;
  std::vector<Weights> blocks_;
  at::Tensor words_, positions_;
  Affine final_;
};

class Pair {
 public:
  Pair(const Sizes& sizes, const comm::World& world)
      : assembly_(step::assemble(toy(sizes), world, kVocabulary)),
        batches_{random_batch(sizes)},
        bare_(assembly_->model.params),
        x_(at::randn({sizes.sequence, sizes.batch, sizes.hidden})),
        dy_(at::randn({sizes.sequence, sizes.batch, sizes.hidden})),
        loss_gradient_(at::full({}, 1.0 / static_cast<double>(sizes.sequence * sizes.batch))) {}

  void our_blocks() {
    const auto& regions = assembly_->model.stages.at(0)->regions().entries;  // embedding, layers, head
    assembly_->model.families.begin_step(1);
    std::vector<nn::RegionRun> runs(kLayers);
    nn::Values x(nn::kHiddenStates, x_);
    for (size_t i = 0; i < runs.size(); ++i) x = nn::run_forward(regions[i + 1].region, x, {batches_[0]}, &runs[i]);
    nn::Gradients dy{dy_};
    for (size_t i = runs.size(); i-- > 0;) dy = nn::run_backward(std::move(runs[i]), dy, {});
  }
  void bare_blocks() {
    bare_.clear_gradients();
    const at::Tensor x = x_.detach().requires_grad_(true);
    torch::autograd::backward({bare_.blocks(x)}, {dy_});
  }

  double our_model() {
    pipeline::Stage& stage = *assembly_->model.stages.at(0);
    assembly_->model.families.begin_step(1);
    pipeline::StageRun run;
    const at::Tensor loss = stage.forward({}, batches_[0], &run).tensor(nn::kLoss);
    stage.backward(std::move(run), {loss_gradient_}, {});
    assembly_->model.families.finish_gradients();
    return loss.item<double>() * loss_gradient_.item<double>();
  }
  double bare_model() {
    bare_.clear_gradients();
    const at::Tensor loss = bare_.loss(batches_[0]);
    torch::autograd::backward({loss}, {});
    return loss.item<double>();
  }

  double our_step() {
    ++step_;
    return step::train_step(*assembly_, {batches_, step_, step_, false, {}}).loss;
  }
  double bare_step() {
    const double loss = bare_model();
    bare_.update();
    return loss;
  }

  // Throws unless both give the same results, up to fp32 rounding from a few hundred operations in a different order.
  void check() {
    expect_near("loss", our_model(), bare_model(), 1e-5);
    for (const nn::Param* param : assembly_->model.params) {
      const at::Tensor right = bare_.gradient(param->name);
      const double error = (param->main_grad - right).norm().item<double>() / (right.norm().item<double>() + 1e-6);
      expect_near(param->name.c_str(), error, 0, 1e-4);
    }
    for (int i = 0; i < 5; ++i) expect_near("loss of a step", our_step(), bare_step(), 1e-4);
  }

 private:
  static void expect_near(const char* what, double ours, double bare, double tolerance) {
    if (!(std::abs(ours - bare) <= tolerance))
      throw std::runtime_error(std::string(what) + ": ours " + std::to_string(ours) + ", bare " +
                               std::to_string(bare));
  }

  std::unique_ptr<step::Assembly> assembly_;
  std::vector<nn::Microbatch> batches_;
  LibtorchLayers bare_;
  at::Tensor x_, dy_, loss_gradient_;
  int64_t step_ = 0;
};

double microseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

void compare(const char* what, int64_t iterations, const std::function<void()>& ours,
             const std::function<void()>& bare) {
  std::vector<double> our_times, bare_times, differences;
  for (int64_t i = 0; i < iterations + 100; ++i) {
    double mine = 0, theirs = 0;
    if (i % 2 == 0) mine = microseconds(ours);
    theirs = microseconds(bare);
    if (i % 2 == 1) mine = microseconds(ours);
    if (i < 100) continue;
    our_times.push_back(mine);
    bare_times.push_back(theirs);
    differences.push_back(mine - theirs);
  }
  const double difference = bench::median(differences);
  std::printf("| %s | %.0f | %.0f | %+.0f | %+.1f |\n", what, bench::median(our_times), bench::median(bare_times),
              difference, difference / static_cast<double>(kLayers));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  Sizes sizes;
  int64_t* const slots[] = {&sizes.iterations, &sizes.hidden, &sizes.sequence, &sizes.batch};
  for (int i = 1; i < argc && i <= 4; ++i) *slots[i - 1] = std::atoll(argv[i]);
  comm::run_threads(1, topology::RankGrid(1, config::Config().parallel), {}, [&](const comm::World& world) {
    Pair pair(sizes, world);
    pair.check();
    std::printf(
        "| GPT, %ld layers, h %ld, seq %ld, b %ld, fp32, 1 thread | ours us | bare torch us | difference us | per "
        "layer us |\n"
        "| --- | --- | --- | --- | --- |\n",
        kLayers, sizes.hidden, sizes.sequence, sizes.batch);
    compare(
        "layers alone, forward + backward", sizes.iterations, [&] { pair.our_blocks(); },
        [&] { pair.bare_blocks(); });
    compare(
        "whole model, forward + backward", sizes.iterations, [&] { pair.our_model(); }, [&] { pair.bare_model(); });
    compare(
        "whole step, with gradient norm and AdamW", sizes.iterations, [&] { pair.our_step(); },
        [&] { pair.bare_step(); });
  });
  return 0;
}
