// Bytes of context parallelism in a training step. Compares the backends' counters with the plan
// (replay/context_traffic.h) for each exchange, with and without documents, and with the prediction.
#include "replay/context_traffic.h"

#include <numeric>

#include "comm/backends/counting.h"
#include "config/derived.h"
#include "forecast/predict.h"
#include "run/support.h"
#include "verify/verify.h"

namespace metroplex::test::context_traffic_ranks_test {
namespace {

using config::CpCommType;

constexpr int kRanks = 4, kLayers = 2, kHeads = 8, kGroups = 2, kHead = 4, kMicrobatches = 3, kSamples = 2;

config::Config make_config(CpCommType exchange, bool documents, const char* cut) {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 2, hidden_size: 32, num_attention_heads: 8, num_query_groups: 2, "
      "ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8}\n"
      "parallel: {context_parallel_size: 4}\n"
      "data: {mock_data: true}\n"
      "train: {seq_length: 64, micro_batch_size: 2, global_batch_size: 6, train_iters: 1}\n");
  config.parallel.cp_comm_type = config::text_of(exchange);
  if (exchange == CpCommType::a2a_p2p) config.parallel.hierarchical_context_parallel_sizes = "2,2";
  config.parallel.context_parallel_cut = cut;
  config.data.reset_attention_mask = documents;
  config.precision.params_dtype = config::ParamsDtype::fp32;
  config::check(config, kRanks);
  return config::resolved(config, kRanks);
}

plan::DocumentLengths document_lengths(const nn::Microbatch& batch) {
  plan::DocumentLengths lengths;
  for (int64_t b = 0; b < kSamples; ++b) {
    std::vector<int64_t>& of_sample = lengths.emplace_back();
    int64_t last = -1;
    for (int64_t i = 0; i < batch.sequence.length; ++i) {
      const int64_t id = batch.documents.ids.defined() ? batch.documents.ids[b][i].item<int64_t>() : 0;
      if (id != last) of_sample.push_back(0);
      last = id;
      ++of_sample.back();
    }
  }
  return lengths;
}

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

struct Bytes {
  int64_t counted = 0, planned = 0, planned_all = 0;  // over all ranks; planned_all ignores documents
};

// The backends' counters of collectives include rows that stay on the rank; this function subtracts them.
int64_t counted_bytes(const comm::Traffic& traffic, int64_t rows_at_home) {
  const auto bytes = [&](const char* group, const char* operation) { return traffic.of(group, operation).bytes; };
  const int64_t gathered = bytes("cp", "all_gather") + bytes("cp", "reduce_scatter");
  int64_t all = gathered / kRanks * (kRanks - 1) + bytes("cp", "send") + bytes("cp-p2p", "send");
  all += bytes("cp-a2a", "all_to_all") / 2;
  const int64_t exchanged = bytes("cp", "all_to_all");
  return all + (rows_at_home > 0 ? exchanged - rows_at_home : exchanged / kRanks * (kRanks - 1));
}

Bytes measure_bytes(const config::Config& config) {
  const CpCommType exchange = config::cp_comm_types(config.parallel)[0];
  const bool documents = config.data.reset_attention_mask;
  const auto traffic = std::make_shared<comm::Traffic>();
  comm::ThreadsOptions options{std::chrono::seconds(60)};
  options.traffic = traffic;
  Bytes bytes;
  replay::ContextTrafficRequest request{exchange, 2, documents, kSamples, kHeads, kGroups, kHead, kHead, 4, 4};
  comm::run_threads(kRanks, topology::RankGrid(kRanks, config.parallel), options, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const auto batches = verify::synthetic_batches(config, world, kVocab, 0, at::kFloat);
    step::train_step(*assembly, {batches, 1, 0, false, {}});
    if (world.rank() != 0) return;
    for (const nn::Microbatch& batch : batches) {
      const plan::DocumentLengths lengths = document_lengths(batch);
      const plan::SequenceCut cut =
          plan::cut_sequence(lengths, {config.parallel.context_parallel_cut, kRanks, 0, 0.02, 1});
      const auto planned = [&](bool seen_only) {
        request.documents = seen_only;
        const replay::ContextTraffic of_layer = replay::context_traffic(lengths, cut, request);
        return kLayers * (sum(of_layer.forward) + sum(of_layer.backward));
      };
      bytes.planned += planned(documents);
      bytes.planned_all += planned(false);
    }
  });
  // Rows that the all-to-all of gathered keys leaves on their rank, three times.
  const bool packed = exchange == CpCommType::all_gather && documents;
  const int64_t home = packed ? int64_t{3} * kLayers * kMicrobatches * kSamples * 64 * kGroups * 2 * kHead * 4 : 0;
  bytes.counted = counted_bytes(*traffic, home);
  return bytes;
}

TEST(ContextTraffic, IsThatOfThePlanAndFallsByWhatNobodyReads) {
  for (const char* cut : {"zigzag", "contiguous", "balanced"}) {
    for (const auto& [exchange, word] : config::kWords<CpCommType>) {
      for (const bool documents : {false, true}) {
        SCOPED_TRACE(base::concat(cut, " ", word, documents ? ", documents" : ""));
        const Bytes bytes = measure_bytes(make_config(exchange, documents, cut));
        EXPECT_GT(bytes.counted, 0);
        EXPECT_EQ(bytes.counted, bytes.planned);
        if (documents && exchange != CpCommType::a2a) {
          EXPECT_LT(static_cast<double>(bytes.planned), 0.8 * static_cast<double>(bytes.planned_all));
        }
      }
    }
  }
}

TEST(ContextTraffic, IsPredictedForEachLayer) {
  for (const auto& [exchange, word] : config::kWords<CpCommType>) {
    SCOPED_TRACE(word);
    const config::Config config = make_config(exchange, false, "zigzag");
    const plan::DocumentLengths one{{64}, {64}};
    const replay::ContextTraffic planned = replay::context_traffic(
        one, plan::cut_sequence(one, {config.parallel.context_parallel_cut, kRanks, 0, 0.02, 1}),
        {exchange, 2, false, kSamples, kHeads, kGroups, kHead, kHead, 4, 4});
    const forecast::RankPrediction prediction = forecast::predict_rank({config, kRanks, 1, kVocab});
    ASSERT_EQ(prediction.exchanges.size(), static_cast<size_t>(kLayers));
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const forecast::ContextExchange& e = prediction.exchanges[static_cast<size_t>(layer)];
      EXPECT_EQ(e.layer, layer);
      EXPECT_EQ(e.exchange, exchange);
      EXPECT_EQ(e.forward_bytes, planned.forward[1]);
      EXPECT_EQ(e.backward_bytes, planned.backward[1]);
      // Half of the pairs of 16 queries and 64 keys, two products forward and five backward.
      const double product = 2.0 * kSamples * kHeads * 16 * 64 / 2 * kHead;
      EXPECT_EQ(e.forward_flops, 2 * product);
      EXPECT_EQ(e.backward_flops, 5 * product);
    }
    // The same with libtorch's operators on a GPU; our kernels there also compute the masked half of the pairs.
    for (const bool own : {false, true}) {
      config::Config on_gpu = config;
      on_gpu.run.device = "cuda", on_gpu.precision.params_dtype = own ? "fp32" : "bf16";
      for (const forecast::ContextExchange& exchange :
           forecast::predict_rank({on_gpu, kRanks, 1, kVocab}).exchanges) {
        const double product = 2.0 * kSamples * kHeads * 16 * 64 / 2 * kHead;
        EXPECT_GE(exchange.forward_flops, 2 * product);
        EXPECT_GE(exchange.backward_flops, 5 * product);
        EXPECT_LE(exchange.forward_flops + exchange.backward_flops, (own ? 2 : 1) * 7 * product);
      }
    }
  }
  config::Config alone = make_config(CpCommType::p2p, false, "zigzag");
  alone.parallel.context_parallel_size = 1;
  EXPECT_TRUE(forecast::predict_rank({alone, 1, 0, kVocab}).exchanges.empty());
}

}  // namespace
}  // namespace metroplex::test::context_traffic_ranks_test
