// The most that a rank holds in a step, and at most while each block runs, against the formula: from above and from
// below, closer than one copy of any tensor of activations or of one gradient bucket.
#include "train/memory_report.h"
#include "train/memory_yaml.h"
#include "train/support.h"
#include "support/without_onednn.h"

namespace metroplex::test {
namespace {

struct Case {
  std::string name;
  bool llama = false;
  TestLayout cut;
  std::string yaml = "";
  int64_t vocab = 50;
};

config::Config config_of(const Case& c) {
  config::Config config =
      config::parse(std::string("model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, vocab_size: 50, "
                                "make_vocab_size_divisible_by: 8, ") +
                    (c.llama ? "family: llama, num_query_groups: 2, ffn_hidden_size: 96" : "family: gpt") +
                    (c.yaml.rfind(",", 0) == 0 ? c.yaml : "}\n" + c.yaml) +
                    "\ntrain: {seq_length: 32, micro_batch_size: 4, global_batch_size: 16, train_iters: 20}\n"
                    "data: {mock_data: true}\n");
  if (c.name.rfind("codegeex", 0) == 0) config.model.family = "codegeex";
  if (c.cut.pp == 3) {
    config.model.num_layers = 6;
    config.train.global_batch_size = 24;
  }
  config = cut(config, c.cut);
  config.parallel.ddp_bucket_size = 10000;
  return config;
}

std::vector<Case> cases() {
  return {
      {"gpt", false, {}},
      {"gpt bf16", false, {}, kBf16},
      {"gpt fp64", false, {}, "precision: {params_dtype: fp64}\n"},
      {"gpt dropout", false, {}, ", hidden_dropout: 0.1}\n"},
      {"gpt large vocabulary", false, {}, "", 500},
      {"gpt large vocabulary bf16", false, {}, kBf16, 500},
      {"llama", true, {}},
      {"llama bf16", true, {}, kBf16},
      {"llama fp16", true, {}, "precision: {params_dtype: fp16}\n"},
      {"gpt attention dropout", false, {}, ", attention_dropout: 0.1}\n"},
      {"gpt attention dropout bf16", false, {}, ", attention_dropout: 0.1}\n" + kBf16},
      {"llama attention dropout", true, {}, ", attention_dropout: 0.1}\n"},
      {"llama qk norm bf16", true, {}, ", qk_layernorm: true}\n" + kBf16},
      {"gpt fp32 residual", false, {}, "precision: {params_dtype: bf16, fp32_residual_connection: true}\n"},
      {"gpt file", false, {}, "memory: {offload_activations: file}\n"},
      {"gpt zero-r",
       false,
       {2, 1, 1, 1, false},
       full_recompute("recompute_method: uniform, recompute_num_layers: 2, distribute_saved_activations: true")},
      {"codegeex", false, {}},
      {"codegeex tp 2 sp bf16", false, {2, 1, 1, 1, true}, kBf16},
      {"codegeex pp 3 vpp 2", false, {1, 3, 2, 1, false}},
      {"gpt tp 2", false, {2, 1, 1, 1, false}},
      {"gpt tp 2 sp", false, {2, 1, 1, 1, true}},
      {"llama tp 2 sp bf16", true, {2, 1, 1, 1, true}, kBf16},
      {"llama tp 2 sp large vocabulary", true, {2, 1, 1, 1, true}, "", 500},
      {"gpt pp 2", false, {1, 2, 1, 1, false}},
      {"gpt pp 4 bf16", false, {1, 4, 1, 1, false}, kBf16},
      {"llama pp 2 vpp 2", true, {1, 2, 2, 1, false}},
      {"gpt zero 0 dp 2", false, {1, 1, 1, 2, false}},
      {"gpt zero 1 dp 2", false, {1, 1, 1, 2, false}, zero("optim")},
      {"gpt zero 1 dp 4 bf16", false, {1, 1, 1, 4, false}, kBf16 + zero("optim")},
      {"gpt zero 2 dp 2", false, {1, 1, 1, 2, false}, zero("optim_grads")},
      {"llama zero 2 dp 4 bf16", true, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads")},
      {"gpt zero 3 dp 2", false, {1, 1, 1, 2, false}, zero("optim_grads_params")},
      {"llama zero 3 dp 4 bf16", true, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads_params")},
      {"llama zero 3 dp 2 tp 2 sp", true, {2, 1, 1, 2, true}, zero("optim_grads_params")},
      {"gpt zero 2 dp 2 pp 2", false, {1, 2, 1, 2, false}, zero("optim_grads")},
      {"gpt full uniform 1", false, {}, full_recompute("recompute_method: uniform, recompute_num_layers: 1")},
      {"llama full uniform 2 bf16",
       true,
       {},
       kBf16 + full_recompute("recompute_method: uniform, recompute_num_layers: 2")},
      {"gpt full block 2 pp 2",
       false,
       {1, 2, 1, 1, false},
       full_recompute("recompute_method: block, recompute_num_layers: 1")},
      {"gpt core_attn", false, {}, selective_recompute("core_attn")},
      {"llama mlp layernorm", true, {}, selective_recompute("mlp, layernorm")},
      {"gpt activation layernorm tp 2 sp", false, {2, 1, 1, 1, true}, selective_recompute("activation, layernorm")},
      {"llama zero 3 dp 2 pp 2 recompute",
       true,
       {1, 2, 1, 2, false},
       zero("optim_grads_params") + full_recompute("recompute_method: uniform, recompute_num_layers: 2")},
  };
}

// What the meter has seen while each block ran, above what was there before the action, and at all.
class Watch {
 public:
  struct Moment {
    size_t action = 0, block = 0;
    bool backward = false;
    int64_t most = 0;
  };

  Watch(train::Assembly& a, cuda::MemoryMeter& meter) : a_(a), meter_(meter) {
    for (const auto& stage : a.stages) stage->listen("watch", around_);
    a.executor->observers().add("watch", [this](const plan::Action&, double) {
      see();
      before_ = meter_.bytes();
      ++action_;
    });
  }
  ~Watch() {
    for (const auto& stage : a_.stages) stage->unlisten("watch");
    a_.executor->observers().remove("watch");
  }

  void begin() {
    moments.clear();
    action_ = 0;
    most_ = 0;
    start_ = before_ = meter_.bytes();
    meter_.reset_peak();
  }
  // Of the whole step; above what was there after the last action; both once the step is done.
  int64_t most() const { return most_ - start_; }
  int64_t most_behind() const { return behind_ - before_; }
  void end() { behind_ = see(); }
  std::vector<Moment> moments;

 private:
  struct Around final : nn::Moments {
    explicit Around(Watch& watch) : watch(watch) {}
    void before(const nn::Turn&) override { watch.see(); }
    void after(const nn::Turn& turn) override {
      watch.moments.push_back({watch.action_, static_cast<size_t>(turn.block), turn.pass == nn::Pass::backward,
                               watch.see() - watch.before_});
    }
    Watch& watch;
  };
  int64_t see() {
    const int64_t most = meter_.peak_bytes();
    most_ = std::max(most_, most);
    meter_.reset_peak();
    return most;
  }

  train::Assembly& a_;
  cuda::MemoryMeter& meter_;
  Around around_{*this};
  size_t action_ = 0;
  int64_t start_ = 0, before_ = 0, most_ = 0, behind_ = 0;
};

// What the formula leaves out: two vectors of the microbatch's indices (8 bytes a token), or as many wide numbers,
// and scalars. A tensor of activations has at least h / 2 numbers of two bytes a token.
int64_t bound_of(const config::Config& config) {
  return 2 * 8 * config.train.seq_length * config.train.micro_batch_size + 64;
}

void compare(const config::Config& config, int64_t vocab, const comm::World& world) {
  cuda::MemoryMeter meter;
  const auto a = train::assemble(config, world, vocab);
  Watch watch(*a, meter);
  for (int64_t step = 0; step < 3; ++step) {
    const auto batches = batches_of(*a, step);
    watch.begin();
    train::train_step(*a, {batches, step + 1, step * config.train.global_batch_size, false, {}});
    watch.end();
  }
  const int64_t count = config.train.global_batch_size / (config.train.micro_batch_size * a->groups().dp.size());
  const plan::MemoryPrediction want = train::predicted_memory(*a, count);
  const auto& actions = a->table(static_cast<int>(count), false).ranks.at(a->groups().pp.index());
  const int64_t bound = bound_of(config);
  ASSERT_EQ(watch.moments.size(), want.moments.size());
  for (size_t i = 0; i < want.moments.size(); ++i) {
    const Watch::Moment& got = watch.moments[i];
    const plan::ReplayMoment& wanted = want.moments[i];
    ASSERT_EQ(got.action, wanted.action);
    ASSERT_EQ(got.block, wanted.block);
    ASSERT_EQ(got.backward, wanted.backward);
    const std::string where = "action " + std::to_string(got.action) + " block " + std::to_string(got.block) +
                              (got.backward ? " backward" : " forward");
    EXPECT_LE(got.most, wanted.most + bound) << where;
    // What full recompute runs without keeping anything may let go sooner.
    const bool keeps = !config.memory.recomputes_all() || actions[got.action].kind == plan::ActionKind::backward;
    if (keeps) { EXPECT_GE(got.most, wanted.most - bound) << where; }
  }
  const int64_t kept =
      want.use.total() - want.use.activations - want.use.communication - want.use.workspace + want.batches;
  EXPECT_LE(watch.most_behind(), bound) << "reductions, norm and update work in place";
  EXPECT_LE(watch.most(), want.peak - kept + bound);
  EXPECT_GE(watch.most(), want.peak - kept - bound);
}

TEST(PeakMemoryRanks, EverySegmentAndTheWholeStepHoldWhatTheFormulaSays) {
  const WithoutOneDnn without;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const config::Config config = config_of(c);
    const auto ranks = static_cast<int>(c.cut.ranks());
    // Sends that complete when they are received are not copied: the meter of a rank sees what the rank holds.
    comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {std::chrono::seconds(60), true},
                      [&](const comm::World& world) {
                        SCOPED_TRACE(c.name + " rank " + std::to_string(world.rank()));
                        compare(config, c.vocab, world);
                      });
  }
}

}  // namespace
}  // namespace metroplex::test
