// .idx and .bin: our writer's output and our reader's results against Megatron's bytes.
#include "files/indexed_dataset.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "conformance/report.h"
#include "files/memory_file_system.h"

namespace metroplex::conformance {

namespace {

std::string hex(const files::Bytes& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size; ++i) {
    const auto value = static_cast<unsigned char>(bytes.data[i]);
    out += "0123456789abcdef"[value >> 4];
    out += "0123456789abcdef"[value & 15];
  }
  return out;
}

files::TokenType find_token_type(const std::string& numpy_name) {
  for (int code = 1; code <= 8; ++code) {
    const auto type = static_cast<files::TokenType>(code);
    if (numpy_name == files::token_type_name(type)) return type;
  }
  base::throw_error("files", "no token type " + numpy_name);
}

void write_case(files::FileSystem& disk, const Json& test_case, const std::string& prefix) {
  const auto type = find_token_type(test_case.at("dtype"));
  const bool whole = type != files::TokenType::f32 && type != files::TokenType::f64;
  files::IndexedDatasetWriter writer(disk, prefix, type, test_case.value("multimodal", false));
  for (size_t d = 0; d < test_case.at("docs").size(); ++d) {
    const Json& document = test_case.at("docs").at(d);
    const bool split = test_case.contains("split_docs") && !test_case.at("split_docs").is_null();
    const auto lengths =
        split ? test_case.at("split_docs").at(d).get<std::vector<size_t>>() : std::vector<size_t>{document.size()};
    size_t at = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const bool modes = test_case.contains("modes") && !test_case.at("modes").is_null();
      const int8_t mode = modes ? test_case.at("modes").at(d).at(s).get<int8_t>() : int8_t{0};
      std::vector<int64_t> tokens;
      std::vector<double> values;
      for (size_t i = 0; i < lengths[s]; ++i, ++at) {
        if (whole) tokens.push_back(document.at(at));
        else values.push_back(document.at(at));
      }
      if (whole) writer.add_sequence(std::span<const int64_t>(tokens), mode);
      else writer.add_sequence(std::span<const double>(values), mode);
    }
    writer.end_document();
  }
  writer.finalize();
}

std::string check_bytes(files::FileSystem& disk, const Json& expected, const std::string& prefix) {
  auto problem = compare_list(hex(disk.map(prefix + ".idx")), expected, "idx_hex");
  if (problem.empty() && expected.contains("bin_hex"))
    problem = compare_list(hex(disk.map(prefix + ".bin")), expected, "bin_hex");
  return problem;
}

std::vector<double> read_values(const files::IndexedDataset& dataset, int64_t sequence, int64_t offset,
                                int64_t count) {
  std::vector<double> out(static_cast<size_t>(count));
  dataset.read(sequence, offset, count, out.data());
  return out;
}

std::string check_gets(const files::IndexedDataset& dataset, const Json& test_case) {
  for (const Json& get : cases(test_case, "get")) {
    const int64_t sequence = get.at("idx"), offset = get.at("offset");
    // Without a length: to the end of the sequence. Past that end numpy's count of -1 would mean "all that follows";
    // here nothing is left there.
    const int64_t count = get.at("length").is_null() ? std::max<int64_t>(dataset.length(sequence) - offset, 0)
                                                     : get.at("length").get<int64_t>();
    Json got;
    try {
      got = read_values(dataset, sequence, offset, count);
    } catch (const base::Error&) { got = nullptr; }
    const bool past_end = get.at("length").is_null() && offset > dataset.length(sequence);
    const Json expected = past_end ? Json::array() : get.contains("error") ? Json() : get.at("out");
    if (auto problem = compare(got, expected); !problem.empty()) return "get " + get.dump() + ": " + problem;
  }
  for (const Json& slice : cases(test_case, "slices")) {
    Json got = Json::array();
    const int64_t end = std::min(slice.at("slice")[1].get<int64_t>(), dataset.num_sequences());
    for (int64_t i = slice.at("slice")[0]; i < end; ++i) got.push_back(read_values(dataset, i, 0, dataset.length(i)));
    if (auto problem = compare_list(got, slice, "out"); !problem.empty())
      return "slice " + slice.at("slice").dump() + ": " + problem;
  }
  return "";
}

std::string check_reader(const files::IndexedDataset& dataset, const Json& test_case) {
  Json lengths = Json::array(), documents = Json::array(), sequences = Json::array();
  for (int64_t i = 0; i < dataset.num_sequences(); ++i) {
    lengths.push_back(dataset.length(i));
    sequences.push_back(read_values(dataset, i, 0, dataset.length(i)));
  }
  for (int64_t i = 0; i <= dataset.num_documents(); ++i) documents.push_back(dataset.document_begin(i));
  const Json got{{"num_sequences", dataset.num_sequences()},
                 {"sequence_lengths", lengths},
                 {"document_indices", documents},
                 {"sequences", sequences},
                 {"dtype", files::token_type_name(dataset.type())},
                 {"dtype_code", static_cast<int>(dataset.type())}};
  for (const auto& [key, value] : got.items()) {
    if (!test_case.contains(key)) continue;
    if (auto problem = compare_list(value, test_case, key); !problem.empty()) return problem;
  }
  return "";
}

// An input of the merge that is not a case of the file: the merged result after the first `skip` sequences.
Json missing_input(const Json& merged, size_t skip) {
  Json documents = Json::array(), split = Json::array();
  const auto lengths = merged.at("sequence_lengths").get<std::vector<size_t>>();
  const auto borders = merged.at("document_indices").get<std::vector<size_t>>();
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    if (borders[i] < skip) continue;
    Json tokens = Json::array(), parts = Json::array();
    for (size_t s = borders[i]; s < borders[i + 1]; ++s) {
      parts.push_back(lengths[s]);
      for (size_t t = 0; t < lengths[s]; ++t) tokens.push_back(t);
    }
    documents.push_back(tokens);
    split.push_back(parts);
  }
  return {{"dtype", "int32"}, {"docs", documents}, {"split_docs", split}};
}

std::string check_merge(const Json& file) {
  const Json& merge = file.at("merge");
  files::MemoryFileSystem disk;
  std::optional<files::IndexedDatasetWriter> writer;
  size_t sequences = 0;
  for (const Json& name : merge.at("inputs")) {
    Json input;
    for (const Json& test_case : cases(file, "cases")) {
      if (test_case.at("name") == name) input = test_case;
    }
    if (input.is_null()) input = missing_input(merge, sequences);
    write_case(disk, input, "/" + name.get<std::string>());
    const files::IndexedDataset part(disk, "/" + name.get<std::string>());
    if (!writer) writer.emplace(disk, "/merged", part.type(), part.has_modes());
    writer->append(part);
    sequences += static_cast<size_t>(part.num_sequences());
  }
  writer->finalize();
  const auto problem = check_bytes(disk, merge, "/merged");
  return problem.empty() ? check_reader(files::IndexedDataset(disk, "/merged"), merge) : problem;
}

}  // namespace

void run_indexed_dataset(const Json& file, Report& report) {
  if (file.contains("dtype_codes")) {
    for (const auto& [name, code] : file.at("dtype_codes").items())
      report.check("code of " + name,
                   [&name = name, &code = code] { return compare(static_cast<int>(find_token_type(name)), code); });
  }
  for (const Json& test_case : cases(file, "cases")) {
    report.check(test_case.at("name"), [&] {
      files::MemoryFileSystem disk;
      write_case(disk, test_case, "/set");
      auto problem = check_bytes(disk, test_case, "/set");
      const files::IndexedDataset dataset(disk, "/set");
      if (problem.empty()) problem = check_reader(dataset, test_case);
      return problem.empty() ? check_gets(dataset, test_case) : problem;
    });
  }
  if (file.contains("merge") && !file.at("merge").empty()) report.check("merge", [&] { return check_merge(file); });
  for (const Json& test_case : cases(file, "optimal_dtype")) {
    report.check("type for " + test_case.at("cardinality").dump(), [&] {
      const auto size = test_case.at("cardinality").is_null()
                            ? std::optional<int64_t>{}
                            : std::optional<int64_t>{test_case.at("cardinality").get<int64_t>()};
      return compare_list(files::token_type_name(files::token_type_for_vocabulary(size)), test_case, "dtype");
    });
  }
}

}  // namespace metroplex::conformance
