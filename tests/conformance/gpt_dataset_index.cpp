// The order of the GPT dataset: numpy's random numbers, document, sample and shuffle index, the samples themselves,
// masks.
#include <cstdio>

#include "base/error.h"
#include "conformance/report.h"
#include "data/gpt_dataset.h"
#include "support/cut.h"

namespace metroplex::conformance {

namespace {

// Documents by the file's rule: token j of document d is 1 + (31 d + 7 j) mod 999, the last one is eod.
class RuleSource final : public data::TokenSource {
 public:
  RuleSource(std::vector<int32_t> lengths, int64_t eod) : lengths_(std::move(lengths)), eod_(eod) {}
  int64_t num_sequences() const override { return static_cast<int64_t>(lengths_.size()); }
  int32_t length(int64_t d) const override { return lengths_[static_cast<size_t>(d)]; }
  void read(int64_t d, int64_t offset, int64_t count, int64_t* out) const override {
    for (int64_t i = 0; i < count; ++i)
      out[i] = offset + i + 1 == length(d) ? eod_ : 1 + (31 * d + 7 * (offset + i)) % 999;
  }
  std::string name() const override { return "rule"; }
  std::string fingerprint() const override { return "rule"; }

 private:
  std::vector<int32_t> lengths_;
  int64_t eod_;
};

std::vector<int64_t> counting(int64_t n) {
  std::vector<int64_t> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = i;
  return values;
}

Json pairs(std::span<const int64_t> rows) {
  Json out = Json::array();
  for (size_t i = 0; i + 1 < rows.size(); i += 2) out.push_back({rows[i], rows[i + 1]});
  return out;
}

Json to_json_list(const auto& values) {
  Json out = Json::array();
  for (const auto& value : values) out.push_back(value);
  return out;
}

std::string starts_with(const Json& got, const Json& expected) {
  Json head = Json::array();
  for (size_t i = 0; i < std::min(expected.size(), got.size()); ++i) head.push_back(got[i]);
  return compare(head, expected);
}

void random_numbers(const Json& rng, Report& report) {
  for (const Json& test_case : cases(rng, "randomstate_shuffle")) {
    report.check(base::concat("shuffle seed ", test_case.at("seed"), " n ", test_case.at("n")), test_case, [&] {
      data::RandomState random(test_case.at("seed").get<uint32_t>());
      auto values = counting(test_case.at("n"));
      random.shuffle(values);
      const std::string problem = compare_list(to_json_list(values), test_case, "out");
      return problem.empty() && test_case.contains("next_u32")
                 ? compare_list(random.next_u32(), test_case, "next_u32")
                 : problem;
    });
  }
  for (const Json& test_case : cases(rng, "randomstate_u32")) {
    report.check(base::concat("u32 seed ", test_case.at("seed")), test_case, [&] {
      data::RandomState random(test_case.at("seed").get<uint32_t>());
      Json got = Json::array();
      for (size_t i = 0; i < test_case.at("out").size(); ++i) got.push_back(random.next_u32());
      return compare_list(got, test_case, "out");
    });
  }
  for (const Json& test_case : cases(rng, "default_rng_integers")) {
    report.check(base::concat("default_rng seed ", test_case.at("seed")), test_case, [&]() -> std::string {
      const auto values = data::DefaultRng(test_case.at("seed").get<uint64_t>())
                              .integers(test_case.at("low"), test_case.at("high"), test_case.at("size"));
      for (const auto& [key, value] : test_case.items()) {
        if (key == "first") {
          if (auto problem = starts_with(to_json_list(values), value); !problem.empty()) return problem;
        } else if (key == "last") {
          if (auto problem = compare(to_json_list(std::span(values).last(value.size())), value); !problem.empty())
            return problem;
        } else if (key == "sum") {
          int64_t sum = 0;
          for (const int32_t v : values) sum += v;
          if (auto problem = compare(sum, value); !problem.empty()) return problem;
        }
      }
      return "";
    });
  }
  for (const auto& [key, c] : rng.items()) {  // randomstate_shuffle_<n>_seed<seed>
    int n = 0;
    unsigned seed = 0;
    if (std::sscanf(key.c_str(), "randomstate_shuffle_%d_seed%u", &n, &seed) != 2) continue;
    report.check(key, c, [&, &c = c] {
      data::RandomState random(seed);
      auto values = counting(n);
      random.shuffle(values);
      const auto problem = starts_with(to_json_list(values), c.at("first"));
      return problem.empty() ? compare(to_json_list(std::span(values).last(c.at("last").size())), c.at("last"))
                             : problem;
    });
  }
}

// One line per position: '1' for a masked key.
std::vector<std::string> masked_lines(const data::Sample& sample) {
  std::vector<std::string> masked;
  for (size_t row = 0; row < sample.tokens.size(); ++row) {
    std::string line;
    for (size_t column = 0; column < sample.tokens.size(); ++column) {
      const bool other = !sample.document_ids.empty() && sample.document_ids[row] != sample.document_ids[column];
      line += column > row || other ? '1' : '0';
    }
    masked.push_back(line);
  }
  return masked;
}

// A recorded mask in that form. It is recorded as lines, or as rows of numbers or booleans, possibly inside a head
// dimension of size one.
Json mask_lines(const Json& mask) {
  if (mask.is_array() && mask.size() == 1 && mask.front().is_array() && mask.front().front().is_array())
    return mask_lines(mask.front());
  Json lines = Json::array();
  for (const Json& row : mask) {
    if (row.is_string()) {
      lines.push_back(row);
      continue;
    }
    std::string line;
    for (const Json& entry : row)
      line += (entry.is_boolean() ? entry.get<bool>() : entry.get<double>() != 0) ? '1' : '0';
    lines.push_back(line);
  }
  return lines;
}

Json sample_to_json(const data::Sample& sample, const Json& expected, int64_t sequence_length) {
  Json got{{"tokens", sample.tokens},
           {"labels", sample.labels},
           {"loss_mask", sample.loss_mask},
           {"position_ids", sample.position_ids}};
  if (expected.contains("cu_seqlens")) {
    auto borders = data::document_borders(sample.document_ids);
    int32_t longest = 0;
    for (size_t i = 1; i < borders.size(); ++i) longest = std::max(longest, borders[i] - borders[i - 1]);
    borders.resize(static_cast<size_t>(sequence_length) + 1, static_cast<int32_t>(sequence_length));
    got["cu_seqlens"] = borders;
    got["max_seqlen"] = longest;
  }
  return got;
}

std::string compare_item(const data::GptDataset& dataset, const Json& expected, int64_t sequence_length) {
  data::Sample sample;
  try {
    dataset.get(expected.at("idx").is_null() ? -1 : expected.at("idx").get<int64_t>(), sample);
  } catch (const base::Error& error) { return is_refusal(expected) ? "" : std::string("refused: ") + error.what(); }
  if (is_refusal(expected)) return "accepted, expected a refusal";
  const Json got = sample_to_json(sample, expected, sequence_length);
  for (const auto& [key, value] : got.items()) {
    if (auto problem = compare_list(value, expected, key); !problem.empty()) return problem;
  }
  for (const char* key : {"attention_mask_true_is_masked", "attention_mask"}) {
    if (!expected.contains(key)) continue;
    if (auto problem = compare(masked_lines(sample), mask_lines(expected.at(key))); !problem.empty())
      return std::string(key) + ": " + problem;
  }
  return "";
}

std::string whole_dataset(const Json& test_case) {
  data::GptOptions options;
  options.index = {
      test_case.at("sequence_length"),
      test_case.at("num_samples").is_null() ? -1 : test_case.at("num_samples").get<int64_t>(),
      test_case.at("seed").get<uint32_t>(), test_case.at("add_extra_token"),
      test_case.at("split") != "valid" || test_case.at("drop_last_partial_validation_sequence").get<bool>()};
  options.split = test_case.at("split");
  options.eod = test_case.at("eod");
  options.pad = test_case.at("pad");
  options.reset_position_ids = test_case.at("reset_position_ids");
  options.reset_attention_mask = test_case.at("reset_attention_mask");
  options.eod_mask_loss = test_case.at("eod_mask_loss");
  options.inter_document_masking = test_case.value("inter_document_masking", false);
  const auto lengths = test_case.at("doc_lengths").get<std::vector<int32_t>>();
  const auto documents = test_case.at("indices").get<std::vector<int32_t>>();

  const auto index = data::build_gpt_index(lengths, documents, options.index);
  Json got{{"tokens_per_epoch", index.tokens_per_epoch}, {"num_epochs", index.num_epochs},
           {"length", index.shuffle_index.size()},       {"document_index", index.document_index},
           {"shuffle_index", index.shuffle_index},       {"sample_index", pairs(index.sample_index)}};
  if (test_case.contains("separate_final_epoch")) {
    got["separate_final_epoch"] = index.separate_final_epoch;
    got["num_samples_sans_final_epoch"] = index.samples_sans_final_epoch;
    got["num_samples_per_epoch"] = index.samples_per_epoch;
    got["num_samples_from_final_epoch"] = options.index.num_samples - index.samples_sans_final_epoch;
  }
  for (const auto& [key, value] : got.items()) {
    if (!test_case.contains(key)) continue;
    if (auto problem = compare_list(value, test_case, key); !problem.empty()) return problem;
  }
  files::PosixFileSystem disk;
  const data::GptDataset dataset(std::make_shared<RuleSource>(lengths, options.eod), documents, options,
                                 data::IndexCache(disk, ""));
  for (const Json& item : cases(test_case, "items")) {
    if (auto problem = compare_item(dataset, item, options.index.sequence_length); !problem.empty())
      return "item " + item.at("idx").dump() + ": " + problem;
  }
  return "";
}

std::string masks(const Json& test_case) {
  data::GptOptions options;
  options.eod = test_case.at("eod");
  options.reset_position_ids = test_case.at("reset_position_ids");
  options.reset_attention_mask = test_case.at("reset_attention_mask");
  options.eod_mask_loss = test_case.at("eod_mask_loss");
  data::Sample sample;
  sample.tokens = test_case.at("data").get<std::vector<int64_t>>();
  data::fill_masks(options, sample);
  const Json got{{"loss_mask", sample.loss_mask},
                 {"position_ids", sample.position_ids},
                 {"attention_mask_true_is_masked", masked_lines(sample)}};
  for (const auto& [key, value] : got.items()) {
    if (auto problem = compare_list(value, test_case, key); !problem.empty()) return problem;
  }
  return "";
}

std::string mock(const Json& test_case) {
  const data::MockSource source(test_case.at("vocab_size"), test_case.at("eod"));
  Json lengths = Json::array();
  int64_t total = 0;
  for (int64_t i = 0; i < source.num_sequences(); ++i) {
    if (lengths.size() < test_case.at("sequence_lengths_first").size()) lengths.push_back(source.length(i));
    total += source.length(i);
  }
  std::vector<int64_t> tokens(7);
  source.read(0, 5, 7, tokens.data());
  return compare({source.num_sequences(), lengths, tokens, total},
                 {test_case.at("size"), test_case.at("sequence_lengths_first"), test_case.at("get_0_5_7"),
                  test_case.at("total_tokens")});
}

}  // namespace

void run_gpt_dataset_index(const Json& file, Report& report) {
  if (file.contains("rng")) random_numbers(file.at("rng"), report);
  for (const Json& test_case : cases(file, "cases"))
    report.check(test_case.at("name"), test_case, [&] { return whole_dataset(test_case); });
  for (const Json& json : cases(file, "document_index_direct")) {
    report.check("document index of " + json.at("documents").dump(), json, [&] {
      data::RandomState random(json.at("seed").get<uint32_t>());
      const auto documents =
          data::build_document_index(json.at("documents").get<std::vector<int32_t>>(), json.at("num_epochs"),
                                     json.at("separate_final_epoch"), random);
      Json got{documents, Json::array()}, expected{json.at("document_index"), Json::array()};
      for (const auto& [key, value] : json.items()) {  // shuffle_index_<first>_<total>
        int first = 0, total = 0;
        if (std::sscanf(key.c_str(), "shuffle_index_%d_%d", &first, &total) != 2) continue;
        got[1].push_back(data::build_shuffle_index(first, total, random));  // continues with the same random numbers
        expected[1].push_back(value);
      }
      return compare(got, expected);
    });
  }
  for (const Json& json : cases(file, "masks"))
    report.check("mask of " + json.at("data").dump(), json, [&] { return masks(json); });
  for (const Json& c : cases(file, "build_sample_idx_raw")) {
    report.check("sample index of " + c.at("sizes").dump(), c, [&] {
      data::GptIndexOptions options;
      options.sequence_length = c.at("sequence_length");
      options.add_extra_token = c.at("add_extra");
      options.drop_last_partial = c.at("drop_last_partial");
      const auto rows = data::build_sample_index(
          c.at("sizes").get<std::vector<int32_t>>(), c.at("document_index").get<std::vector<int32_t>>(),
          c.at("num_epochs").get<int64_t>() * c.at("tokens_per_epoch").get<int64_t>(), options);
      return compare_list(pairs(rows), c, "sample_index");
    });
  }
  if (file.contains("mock") && !file.at("mock").empty()) report.check("mock", [&] { return mock(file.at("mock")); });
}

}  // namespace metroplex::conformance
