// Blends and splits: the indices, the arithmetic of shares and sizes, and whole datasets built from files.
#include "data/blend.h"

#include <array>
#include <cstdio>
#include <filesystem>

#include <unistd.h>

#include "base/error.h"
#include "conformance/report.h"
#include "data/build.h"
#include "data/gpt_dataset.h"
#include "files/indexed_dataset.h"

namespace metroplex::conformance {

namespace {

Json list(const auto& values) {
  Json out = Json::array();
  for (const auto& value : values) out.push_back(value);
  return out;
}

Json bounds_json(const data::SplitBounds& bounds) {
  Json out = Json::array();
  for (const auto& b : bounds) out.push_back(b ? Json{b->first, b->second} : Json());
  return out;
}

std::string blend(const Json& test_case, const data::BlendIndex& index) {
  if (auto problem = compare_list(list(index.dataset), test_case, "dataset_index"); !problem.empty()) return problem;
  if (auto problem = compare_list(list(index.sample), test_case, "dataset_sample_index"); !problem.empty())
    return problem;
  if (!test_case.contains("counts")) return "";
  std::vector<int64_t> counts(test_case.at("counts").size(), 0);
  for (const int16_t d : index.dataset) ++counts[static_cast<size_t>(d)];
  return compare_list(counts, test_case, "counts");
}

std::string split(const Json& test_case) {
  const auto shares = data::parse_split(test_case.at("split"));
  const auto bounds = data::split_bounds(shares);
  if (auto problem = compare_list(list(shares), test_case, "vector"); !problem.empty()) return problem;
  if (auto problem = compare_list(bounds_json(bounds), test_case, "matrix"); !problem.empty()) return problem;
  for (const auto& [key, expected] : test_case.items()) {  // ranges_for_<n>
    int n = 0;
    if (std::sscanf(key.c_str(), "ranges_for_%d", &n) != 1) continue;
    Json got = Json::array();
    for (const auto& b : bounds) {
      const auto range = b ? data::split_range(*b, n) : std::pair<int64_t, int64_t>{};
      got.push_back(b ? Json{range.first, range.second} : Json());
    }
    if (auto problem = compare(got, expected); !problem.empty()) return key + ": " + problem;
  }
  return "";
}

class Scratch {
 public:
  Scratch()
      : path_((std::filesystem::temp_directory_path() / ("metroplex_blending_" + std::to_string(::getpid())))
                  .string()) {
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::string prefix(size_t i) const { return path_ + "/set" + std::to_string(i); }

 private:
  std::string path_;
};

// Dataset i, document d, token j: 1 + (31 d + 7 j + 500 i) mod 998; the last token is 0.
void write_corpus(const Json& doc_lengths, size_t i, const std::string& prefix) {
  files::PosixFileSystem disk;
  files::IndexedDatasetWriter writer(disk, prefix, files::TokenType::i32);
  for (size_t d = 0; d < doc_lengths.size(); ++d) {
    std::vector<int64_t> tokens(doc_lengths[d].get<size_t>());
    for (size_t j = 0; j < tokens.size(); ++j)
      tokens[j] = j + 1 == tokens.size() ? 0 : static_cast<int64_t>(1 + (31 * d + 7 * j + 500 * i) % 998);
    writer.add_sequence(std::span<const int64_t>(tokens));
    writer.end_document();
  }
  writer.finalize();
}

std::string compare_split(const data::Dataset& dataset, const Json& expected) {
  const auto* blended = dynamic_cast<const data::BlendedDataset*>(&dataset);
  Json got{{"type", blended ? "BlendedDataset" : "GPTDataset"}, {"length", dataset.size()}};
  if (blended) {
    got["dataset_index"] = list(blended->dataset_index());
    got["dataset_sample_index"] = list(blended->sample_index());
    Json lengths = Json::array();
    for (const auto& part : blended->datasets()) lengths.push_back(part->size());
    got["sub_lengths"] = lengths;
  }
  Json first = Json::array();
  for (int64_t i = 0; i < std::min<int64_t>(6, dataset.size()); ++i) {
    data::Sample sample;
    dataset.get(i, sample);
    first.push_back(sample.tokens);
  }
  got["tokens_first6"] = first;
  for (const auto& [key, value] : got.items()) {
    if (!expected.contains(key)) continue;
    if (auto problem = compare_list(value, expected, key); !problem.empty()) return problem;
  }
  return "";
}

data::Splits build(const Json& test_case, const Scratch& scratch) {
  config::Data config;
  for (size_t i = 0; i < test_case.at("doc_lengths").size(); ++i) {
    write_corpus(test_case.at("doc_lengths").at(i), i, scratch.prefix(i));
    if (!test_case.at("weights").is_null()) config.data_path.push_back(test_case.at("weights").at(i).dump());
    config.data_path.push_back(scratch.prefix(i));
  }
  config.split = test_case.at("split");
  const auto sizes = test_case.at("sizes").get<std::vector<Json>>();
  const auto size = [&](size_t i) { return sizes[i].is_null() ? int64_t{-1} : sizes[i].get<int64_t>(); };
  files::PosixFileSystem disk;
  return data::build_datasets(config,
                              {.sequence_length = test_case.at("sequence_length"),
                               .seed = test_case.at("seed"),
                               .sizes = {size(0), size(1), size(2)}},
                              disk);
}

std::string end_to_end(const Json& test_case) {
  const Scratch scratch;
  data::Splits splits;
  std::string refused;
  try {
    splits = build(test_case, scratch);
  } catch (const base::Error& error) { refused = error.what(); }
  if (test_case.contains("error"))
    return refused.empty() ? "accepted, should be refused with " + test_case.at("error").dump() : "";
  if (!refused.empty()) return "refused: " + refused;
  const std::array<const data::Dataset*, 3> got{
      splits.train.get(), splits.valid.empty() ? nullptr : splits.valid[0].get(), splits.test.get()};
  for (size_t i = 0; i < test_case.at("splits").size() && i < 3; ++i) {
    const Json& expected = test_case.at("splits").at(i);
    const std::string name = data::kSplitNames[i];
    if (expected.is_null() != (got[i] == nullptr)) return name + (got[i] ? " should be empty" : " is missing");
    if (expected.is_null()) continue;
    if (auto problem = compare_split(*got[i], expected); !problem.empty()) return name + ": " + problem;
  }
  return "";
}

// A rejection is recorded only by its name: two datasets without weights, whose validation part is shorter than a
// sample. It is the first case of two datasets without its weights.
Json complete(const Json& test_case, const Json& file) {
  if (test_case.contains("doc_lengths")) return test_case;
  for (const Json& other : cases(file, "end_to_end")) {
    if (!other.contains("doc_lengths") || other.at("doc_lengths").size() != 2) continue;
    Json whole = other;
    whole.update(test_case);
    whole["weights"] = nullptr;
    return whole;
  }
  return nullptr;
}

void arithmetic(const Json& file, Report& report) {
  for (const Json& test_case : cases(file, "split_matrix_two")) {
    report.check("overlap of " + test_case.at("a").dump(), test_case, [&] {
      return compare(bounds_json(data::split_bounds(test_case.at("a").get<std::array<double, 3>>(),
                                                    test_case.at("b").get<std::array<double, 3>>())),
                     test_case.at("matrix"));
    });
  }
  for (const Json& test_case : cases(file, "get_blend_from_list")) {
    report.check("blend " + test_case.at("input").dump(), test_case, [&] {
      const auto got =
          data::parse_blend(test_case.at("input").is_null() ? std::vector<std::string>{}
                                                            : test_case.at("input").get<std::vector<std::string>>());
      if (!got) return compare_list(Json(), test_case, "output");
      return compare_list(Json{got->prefixes, got->weights ? Json(*got->weights) : Json()}, test_case, "output");
    });
  }
  for (const Json& test_case : cases(file, "sizes")) {
    report.check("sizes " + test_case.at("weights").dump(), test_case, [&] {
      return compare(
          list(data::sizes_per_dataset(test_case.at("weights"), test_case.at("target").get<std::array<int64_t, 3>>(),
                                       test_case.at("surplus"))),
          test_case.at("sizes"));
    });
  }
}

}  // namespace

void run_blending(const Json& file, Report& report) {
  for (const Json& test_case : cases(file, "blending"))
    report.check("blend " + test_case.at("weights").dump(), test_case, [&] {
      return blend(test_case, data::build_blend_index(test_case.at("weights"), test_case.at("size")));
    });
  for (const Json& json : cases(file, "exhaustive")) {
    report.check("exhaustive " + json.at("sizes").dump(), json,
                 [&] { return blend(json, data::build_exhaustive_blend_index(json.at("sizes"))); });
  }
  for (const Json& json : cases(file, "splits"))
    report.check("split " + json.at("split").dump(), json, [&] { return split(json); });
  arithmetic(file, report);
  for (const Json& c : cases(file, "end_to_end")) {
    const Json whole = complete(c, file);
    if (whole.is_null())
      report.wait(c.at("name"), "a case of two datasets in the same file, whose documents it shares");
    else report.check(c.at("name"), [&] { return end_to_end(whole); });
  }
}

}  // namespace metroplex::conformance
