// The most that a rank holds in a step, and at most while each block runs, against what its trace says: to the byte,
// but for scalars.
#include "train/memory_cases.h"
#include "train/memory_watch.h"
#include "support/everyday.h"
#include "support/without_onednn.h"

namespace metroplex::test::peak_memory_ranks_test {
namespace {

TEST(PeakMemoryRanks, EverySegmentAndTheWholeStepHoldWhatTheTraceSays) {
  const WithoutOneDnn without;
  for (const MemoryCase& c : peak_cases()) {
    SCOPED_TRACE(c.name);
    const config::Config config = peak_config(c);
    const auto ranks = static_cast<int>(c.cut.ranks());
    // Sends that complete when they are received are not copied: the meter of a rank sees what the rank holds.
    comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {std::chrono::seconds(60), true},
                      [&](const comm::World& world) {
                        SCOPED_TRACE(c.name + " rank " + std::to_string(world.rank()));
                        expect_predicted_memory(config, c.vocab, world);
                      });
  }
}

// What one rank of every family keeps and takes at most, in every type and form of recompute.
std::vector<std::string> forms() {
  std::vector<std::string> all{"", "memory: {offload_activations: file}\n"};
  for (const char* rest :
       {"recompute_method: uniform, recompute_num_layers: 1", "recompute_method: uniform, recompute_num_layers: 2",
        "recompute_method: block, recompute_num_layers: 1"})
    all.push_back(full_recompute(rest));
  for (const char* modules : {"core_attn", "mlp", "layernorm", "activation", "core_attn, layernorm, activation"})
    all.push_back(selective_recompute(modules));
  return all;
}

TEST(PeakMemoryRanks, EveryFamilyTypeAndFormOfRecompute) {
  const WithoutOneDnn without;
  std::vector<std::pair<MemoryCase, std::string>> cases;  // and what to call them
  for (const std::string family : {"gpt", "llama", "codegeex"}) {
    for (const std::string dtype : {"fp64", "fp32", "bf16", "fp16"}) {
      for (const std::string& form : forms()) {
        for (const bool dropout : {false, true}) {
          MemoryCase c{family, family == "llama", {}};
          c.yaml = (dropout ? ", hidden_dropout: 0.1, attention_dropout: 0.1}\n" : "") + form +
                   "precision: {params_dtype: " + dtype + "}\n";
          cases.emplace_back(c, family + " " + dtype + " " + form + (dropout ? "with dropout" : ""));
        }
      }
    }
  }
  ASSERT_EQ(cases.size(), 3u * 4 * 10 * 2);
  for (const auto& [c, name] : everyday(cases, 5)) {
    SCOPED_TRACE(name);
    const config::Config config = peak_config(c);
    run_cut(config, c.cut,
            [&, vocab = c.vocab](const comm::World& world) { expect_predicted_memory(config, vocab, world); });
  }
}

}  // namespace
}  // namespace metroplex::test::peak_memory_ranks_test
