// Training on packed chats gives the same result as training on each chat separately, and every layout matches a
// single rank.
#include <mutex>

#include "data/build.h"
#include "data/token_source.h"
#include "files/indexed_dataset.h"
#include "run/support.h"

namespace metroplex::test::whole_chats_ranks_test {
namespace {

constexpr int64_t kLength = 24;

struct OneChat {
  std::vector<int64_t> tokens, learned;
};

std::vector<OneChat> some_chats() {
  std::vector<OneChat> chats;
  for (int64_t c = 0; c < 24; ++c) {
    OneChat& chat = chats.emplace_back();
    const int64_t length = 3 + (c * 7) % 17;
    for (int64_t i = 0; i < length; ++i) {
      chat.tokens.push_back(1 + (c * 31 + i * i * 5 + i) % (kVocab - 1));
      chat.learned.push_back((i + c) % 3 == 0 || i + 1 == length);
    }
  }
  return chats;
}

std::shared_ptr<const data::Dataset> packed(const Folder& folder) {
  files::PosixFileSystem disk;
  files::IndexedDatasetWriter tokens(disk, folder.at("chats"), files::TokenType::i32);
  files::IndexedDatasetWriter marks(disk, folder.at("chats") + data::kLossMaskSuffix, files::TokenType::u8);
  for (const OneChat& chat : some_chats()) {
    tokens.add_sequence(std::span<const int64_t>(chat.tokens));
    tokens.end_document();
    marks.add_sequence(std::span<const int64_t>(chat.learned));
    marks.end_document();
  }
  marks.finalize();
  tokens.finalize();
  config::Data config;
  config.data_path = {folder.at("chats")};
  config.split = "1,0,0";
  config.reset_position_ids = config.reset_attention_mask = true;
  return data::build_datasets(config, {kLength, 1234, {64, 0, 0}, -1, kVocab}, disk).train;
}

nn::Microbatch make_microbatch(data::Sample sample, int64_t number, int64_t step) {
  step::HostBatch host;
  host.numbers = {number, 1, step};
  host.vocab_size = kVocab;
  host.samples.push_back(std::move(sample));
  return step::stack_samples(host, at::kDouble);
}

config::Config chat_config(config::Config config) {
  config.train.seq_length = kLength;
  config.train.global_batch_size = 4;
  config.train.calculate_per_token_loss = true;
  config.data.reset_position_ids = config.data.reset_attention_mask = true;
  config.model.hidden_dropout = config.model.attention_dropout = 0;
  return config;
}

// The sum of losses of each chat alone, without a document mask.
std::map<int64_t, double> losses_alone(step::Assembly& assembly) {
  std::map<int64_t, double> sums;  // by the chat's first two tokens
  for (const OneChat& chat : some_chats()) {
    data::Sample sample;
    double count = 0;
    for (size_t i = 0; i + 1 < chat.tokens.size(); ++i) {
      sample.tokens.push_back(chat.tokens[i]);
      sample.labels.push_back(chat.tokens[i + 1]);
      sample.position_ids.push_back(static_cast<int64_t>(i));
      sample.loss_mask.push_back(static_cast<float>(chat.learned[i + 1]));
      count += static_cast<double>(chat.learned[i + 1]);
    }
    const int64_t key = chat.tokens[0] * 1000 + chat.tokens[1] * 30 + static_cast<int64_t>(chat.tokens.size());
    sums[key] = step::evaluate_step(assembly, {make_microbatch(std::move(sample), 0, 1)}).mean() * count;
  }
  return sums;
}

// Each sum has about a hundred float64 terms of magnitude 1, so a relative tolerance of 1e-12 is enough.
TEST(WholeChats, PackedTheyHaveTheLossesThatEachHasAlone) {
  const Folder folder;
  const auto dataset = packed(folder);
  for (const config::Config& base : {small_gpt(), small_llama()}) {
    const config::Config config = cut(chat_config(base), {});
    run_sharded(config, {}, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab, true);
      const std::map<int64_t, double> alone = losses_alone(*assembly);
      ASSERT_EQ(alone.size(), some_chats().size());
      int64_t several = 0;
      for (int64_t i = 0; i < dataset->size() && i < 12; ++i) {
        data::Sample sample;
        dataset->get(i, sample);
        double want = 0, count = 0;
        int64_t begin = 0;
        for (int64_t at = 1; at <= kLength; ++at) {
          if (at < kLength && sample.document_ids[at] == sample.document_ids[begin]) continue;
          const int64_t key = sample.tokens[begin] * 1000 + sample.labels[begin] * 30 + at - begin + 1;
          if (sample.tokens[begin] != 0) want += alone.at(key);
          several += begin > 0 && sample.tokens[begin] != 0;
          begin = at;
        }
        for (const float learned : sample.loss_mask) count += learned;
        const double got = step::evaluate_step(*assembly, {make_microbatch(std::move(sample), i, 1)}).mean();
        EXPECT_NEAR(got, want / count, 1e-12 * want / count) << "sample " << i;
      }
      EXPECT_GT(several, 4);
    });
  }
}

struct TrainResult {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> state;
};

TrainResult train_on(const data::Dataset& dataset, const config::Config& config, const TestLayout& layout) {
  TrainResult out;
  std::mutex lock;
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const step::SequenceSharding parts = step::sequence_sharding(config.parallel, assembly->process.groups().cp);
    const int64_t dp = assembly->process.groups().dp.size();
    std::vector<double> losses;
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<nn::Microbatch> batches;
      for (int64_t m = 0; m < 4 / dp; ++m) {
        const int64_t number = step * 4 + m * dp + assembly->process.groups().dp.index();
        data::Sample sample;
        dataset.get(number, sample);
        batches.push_back(step::shard_sequence(make_microbatch(std::move(sample), number, step), parts));
      }
      losses.push_back(step::train_step(*assembly, {batches, step + 1, step * 4, false, {}}).loss);
    }
    const auto state = whole_state(*assembly);
    const std::lock_guard hold(lock);
    if (world.rank() == 0) out = {losses, state};
  });
  return out;
}

// The tolerances of all layout comparisons: losses to 1e-12 relative, parameters to 1e-10.
TEST(WholeChats, EveryLayoutTrainsOnThemAsOneRank) {
  const Folder folder;
  const auto dataset = packed(folder);
  const config::Config base = chat_config(small_llama());
  const TrainResult one = train_on(*dataset, cut(base, {}), {});
  ASSERT_EQ(one.losses.size(), 3u);
  for (const auto& [layout, cp] : {std::pair{TestLayout{2, 2, 1, 1, true}, 1},
                                   {TestLayout{1, 2, 2, 2, false}, 1},
                                   {TestLayout{2, 1, 1, 1, false}, 2},
                                   {TestLayout{1, 1, 1, 4, false}, 1}}) {
    SCOPED_TRACE(base::concat("tp ", layout.tp, " pp ", layout.pp, " dp ", layout.dp, " cp ", cp));
    config::Config config = base;
    TestLayout ranks = layout;
    config.parallel.context_parallel_size = cp;
    if (cp > 1) ranks.dp *= cp;  // TestLayout::dp includes the cp ranks; the config's dp does not
    const TrainResult many = train_on(*dataset, cut(config, ranks), ranks);
    ASSERT_EQ(many.losses.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 1e-12 * one.losses[i]) << i;
    ASSERT_EQ(many.state.size(), one.state.size());
    for (const auto& [name, tensor] : one.state) {
      const double worst = (many.state.at(name) - tensor).abs().max().item<double>();
      EXPECT_LE(worst, 1e-10 * std::max(1.0, tensor.abs().max().item<double>())) << name;
    }
  }
}

}  // namespace
}  // namespace metroplex::test::whole_chats_ranks_test
