#include "data/preprocess.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/token_source.h"
#include "files/checksum.h"
#include "files/indexed_dataset.h"
#include "files/text_form.h"

namespace metroplex::data {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kChunkBytes = 256 << 10, kSampledBytes = 64 << 10;

std::string record_path(const std::string& prefix) { return prefix + ".preprocess.json"; }

class Job {
 public:
  Job(files::FileSystem& disk, const PreprocessOptions& options, const Encoder& encoder)
      : disk_(disk),
        options_(options),
        encoder_(encoder),
        directory_(options.output_prefix + ".preprocess"),
        files_(open_documents(disk, options.inputs, options.format, &progress_.hidden_files)) {
    int64_t total = 0;
    for (const DocumentFile& file : files_) {
      starts_.push_back(total);
      total += static_cast<int64_t>(file.bytes.size);
    }
    // 128-bit products, so that adjacent partitions agree on the border.
    const auto border = [&](int64_t i) {
      return static_cast<int64_t>(static_cast<__int128>(total) * i / options_.num_partitions);
    };
    begin_ = border(options.partition);
    end_ = options.partition + 1 == options.num_partitions ? total + 1 : border(options.partition + 1);
    progress_.bytes_total = std::min(end_, total) - begin_;
    part_bytes_ =
        options.part_bytes > 0 ? options.part_bytes : std::clamp<int64_t>(total / 1000, 8 * kMiB, 128 * kMiB);
  }

  PreprocessProgress run() {
    check_folder();
    check_output();
    disk_.make_directories(directory_);
    const auto lock = disk_.try_lock(path("lock"));
    MPX_CHECK(lock != nullptr, "data", "another run of preprocess is writing '", options_.output_prefix,
              "'; wait until it finishes, or choose another prefix");
    try {
      DocumentReader reader(files_, options_.split_documents, resume());
      while (!ended_) write_part(reader);
      if (chats() && progress_.tokens == 0) base::throw_error("data", why_no_chat());
      MPX_CHECK(progress_.tokens > 0, "data", "the input contains no tokens: ", files_.size(), " files, ",
                progress_.bytes_total, " bytes, ", progress_.empty_documents,
                " empty documents; pass files with text");
      finish();
    } catch (const base::Error&) {
      if (progress_.tokens == 0 || num_parts_ == 0) disk_.remove_tree(directory_);  // nothing to resume from
      throw;
    }
    return progress_;
  }

 private:
  std::string why_no_chat() const {
    const PreprocessProgress& progress = progress_;
    const int64_t dropped = encoder_.drops_long_chats ? progress.long_chats : 0;
    std::string why =
        base::concat("none of the ", progress.empty_documents, " ", encoder_.chat_sequences, " is left");
    if (progress.long_chats > 0)
      why += base::concat(
          "; ", progress.long_chats, " with more than ", encoder_.longest_chat, " tokens were ",
          dropped > 0 ? "left out: pass a larger --seq-length, or --long cut" : "cut: pass a larger --seq-length");
    if (progress.empty_documents > dropped)
      why += base::concat("; in ", progress.empty_documents - dropped,
                          " no token is learned: check that they have assistant messages and that the template "
                          "renders them; --learn last learns only an assistant message that is the last message");
    return why;
  }
  std::string path(const std::string& name) const { return files::join_path(directory_, name); }
  std::string part(int64_t number) const {
    char name[32];
    std::snprintf(name, sizeof name, "part-%08lld", static_cast<long long>(number));
    return path(name);
  }

  // All inputs of the result. For input files: names, sizes, times, and the bytes at both ends.
  std::string description() const {
    nlohmann::json job{{"version", 1},
                       {"encoder", encoder_.description},
                       {"tokenizer", encoder_.tokenizer},
                       {"vocab_size", encoder_.vocab_size},
                       {"eod", encoder_.eod},
                       {"json_key", options_.json_key},
                       {"split_documents", options_.split_documents},
                       {"append_eod", options_.append_eod},
                       {"partition", {options_.partition, options_.num_partitions}},
                       {"part_bytes", part_bytes_}};
    if (chats()) job["chats"] = {encoder_.longest_chat, encoder_.drops_long_chats};
    if (!encoder_.before.empty() || !encoder_.after.empty())
      job["special_tokens"] = {{"before", encoder_.before}, {"after", encoder_.after}};
    for (const DocumentFile& file : files_) {
      const size_t ends = std::min<size_t>(file.bytes.size, kSampledBytes);
      job["files"].push_back({file.path, file.jsonl, file.bytes.size, disk_.write_time(file.path),
                              files::to_hex(files::checksum(file.bytes.data, ends)),
                              files::to_hex(files::checksum(file.bytes.data + (file.bytes.size - ends), ends))});
    }
    return job.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  // The folder of part files will be removed, so it must contain no other files.
  void check_folder() const {
    if (!disk_.exists(directory_)) return;
    for (const std::string& name : disk_.list(directory_)) {
      const bool ours = name == "lock" || name.starts_with("part-") || name.starts_with("job.json");
      MPX_CHECK(ours, "data", "'", path(name), "' was not made by preprocess; move '", directory_,
                "' away, or choose another --output-prefix");
    }
  }
  // Existing output must belong to this job, complete or not, unless `overwrite` is set.
  void check_output() const {
    if (options_.overwrite) return;
    for (const char* end : {".bin", ".idx", "_loss_mask.bin", "_loss_mask.idx"}) {
      const std::string file = options_.output_prefix + end;
      MPX_CHECK(!disk_.exists(file) || describes_us(path("job.json")) || describes_us(record()), "data", "'", file,
                "' already exists and was not made by this job; choose another --output-prefix, or pass --overwrite "
                "to replace that dataset");
    }
  }
  bool describes_us(const std::string& file) const { return disk_.exists(file) && disk_.read(file) == description(); }
  std::string record() const { return record_path(options_.output_prefix); }

  // Reuses the complete part files of an earlier run of the same job. Removes those of any other job.
  DocumentPosition resume() {
    const std::string job = description();
    DocumentPosition position;
    if (!disk_.exists(path("job.json")) || disk_.read(path("job.json")) != job) {
      for (const std::string& name : disk_.list(directory_)) {
        if (name != "lock") disk_.remove_tree(path(name));
      }
      disk_.replace_file(path("job.json"), job);
      return position;
    }
    for (; !ended_ && take_up(part(num_parts_), position); ++num_parts_) {}
    progress_.bytes_resumed = progress_.bytes_done;
    return position;
  }

  bool take_up(const std::string& prefix, DocumentPosition& position) {
    if (!disk_.exists(prefix + ".json")) return false;
    try {
      const auto note = nlohmann::json::parse(disk_.read(prefix + ".json"));
      const files::IndexedDataset dataset(disk_, prefix);
      if (dataset_checksum(dataset) != note.at("sum") || dataset.num_tokens() != note.at("tokens")) return false;
      if (chats() && dataset_checksum(files::IndexedDataset(disk_, prefix + kLossMaskSuffix)) != note.at("marks_sum"))
        return false;
      const DocumentPosition next{note.at("next_file"), note.at("next_offset")};
      progress_.documents += dataset.num_sequences();
      progress_.tokens += dataset.num_tokens();
      progress_.chats += note.at("chats").get<int64_t>();
      progress_.learned += note.at("learned").get<int64_t>();
      progress_.long_chats += note.at("long_chats").get<int64_t>();
      progress_.surrogates += note.at("surrogates").get<int64_t>();
      progress_.empty_documents += note.at("empty").get<int64_t>();
      progress_.bytes_done = note.at("bytes_done");
      ended_ = note.at("ended");
      position = next;
      return true;
    } catch (const base::Error&) {  // an unreadable part file is rebuilt
      return false;
    } catch (const nlohmann::json::exception&) { return false; }
  }

  // Returns the documents of the next part file, in chunks for the cores. Sets ended_ if the input or the partition
  // ends with it.
  std::vector<std::vector<RawDocument>> gather(DocumentReader& reader) {
    std::vector<std::vector<RawDocument>> chunks;
    int64_t in_part = 0, in_chunk = kChunkBytes;
    RawDocument document;
    while (in_part < part_bytes_) {
      ended_ = !reader.next(document);
      if (ended_) break;
      const int64_t start = starts_[document.file] + document.offset;
      if (start < begin_) continue;
      ended_ = start >= end_;
      if (ended_) break;
      if (in_chunk >= kChunkBytes) {
        chunks.emplace_back();
        in_chunk = 0;
      }
      chunks.back().push_back(document);
      in_chunk += static_cast<int64_t>(document.text.size()) + 1;
      in_part += static_cast<int64_t>(document.text.size()) + 1;
    }
    return chunks;
  }

  bool chats() const { return encoder_.encode_chat != nullptr; }
  bool adds_eod() const { return !encoder_.after.empty() && encoder_.after.back() == encoder_.eod; }
  static std::string dataset_checksum(const files::IndexedDataset& dataset) {
    return files::to_hex(files::checksum(dataset.token_bytes().data, dataset.token_bytes().size));
  }

  std::vector<int32_t> with_special(std::vector<int32_t> ids) const {
    if (ids.empty()) return ids;
    ids.insert(ids.begin(), encoder_.before.begin(), encoder_.before.end());
    ids.insert(ids.end(), encoder_.after.begin(), encoder_.after.end());
    return ids;
  }

  // Truncates or drops a long sequence. A sequence without learned tokens becomes empty.
  void shorten(MarkedTokens& made, int64_t& long_chats) const {
    MPX_ASSERT(made.tokens.size() == made.learned.size(), "the number of marks differs from the number of tokens");
    if (const auto longest = static_cast<size_t>(encoder_.longest_chat);
        longest > 0 && made.tokens.size() > longest) {
      ++long_chats;
      made.tokens.resize(encoder_.drops_long_chats ? 0 : longest);
      made.learned.resize(made.tokens.size());
    }
    // The first token is never predicted.
    const auto first = made.learned.begin() + (made.learned.empty() ? 0 : 1);
    if (std::find(first, made.learned.end(), 1) == made.learned.end()) made = {};
  }

  std::vector<MarkedTokens> encode(const RawDocument& document, int64_t& long_chats, int64_t& surrogates) const {
    if (!chats()) {
      const std::string text = document_text(files_, document, options_.json_key, &surrogates);
      return {MarkedTokens{with_special(encoder_.encode(text)), {}}};
    }
    if (files::has_python_json(document.text)) files::without_python_json(document.text, &surrogates);
    try {
      std::vector<MarkedTokens> sequences = encoder_.encode_chat(document.text);
      for (MarkedTokens& made : sequences) shorten(made, long_chats);
      return sequences;
    } catch (const base::Error& error) {
      const DocumentFile& file = files_[document.file];
      const std::string form = files::no_json_lines_form(file.bytes.text());
      if (!form.empty()) throw base::Error("data", "'" + file.path + "' " + form);
      throw base::Error("data", document_place(files_, document) + ": " + base::message_of(error));
    }
  }

  std::vector<MarkedTokens> encode_chunk(const std::vector<RawDocument>& chunk) {
    std::vector<MarkedTokens> out;
    int64_t bytes = 0, tokens = 0, empty = 0, chats_kept = 0, learned = 0, long_chats = 0, surrogates = 0;
    for (const RawDocument& document : chunk) {
      bool kept = false;
      for (MarkedTokens& made : encode(document, long_chats, surrogates)) {
        std::vector<int32_t>& ids = made.tokens;
        if (ids.empty()) ++empty;
        else if (options_.append_eod && !adds_eod()) ids.push_back(static_cast<int32_t>(encoder_.eod));
        kept |= !ids.empty();
        tokens += static_cast<int64_t>(ids.size());
        learned += std::count(made.learned.begin(), made.learned.end(), 1);
        out.push_back(std::move(made));
      }
      bytes += static_cast<int64_t>(document.text.size());
      chats_kept += chats() && kept;
    }
    const std::lock_guard guard(mutex_);
    progress_.bytes_done += bytes;
    progress_.tokens += tokens;
    progress_.chats += chats_kept;
    progress_.learned += learned;
    progress_.long_chats += long_chats;
    progress_.surrogates += surrogates;
    progress_.empty_documents += empty;
    progress_.documents += static_cast<int64_t>(out.size()) - empty;
    if (options_.progress) options_.progress(progress_);
    return out;
  }

  void write_part(DocumentReader& reader) {
    const PreprocessProgress before = progress_;
    const auto chunks = gather(reader);
    std::vector<std::vector<MarkedTokens>> encoded(chunks.size());
    base::parallel_for(static_cast<int64_t>(chunks.size()), options_.workers, [&](int64_t i) {
      encoded[static_cast<size_t>(i)] = encode_chunk(chunks[static_cast<size_t>(i)]);
    });

    const std::string prefix = part(num_parts_);
    files::IndexedDatasetWriter writer(disk_, prefix, files::token_type_for_vocabulary(encoder_.vocab_size));
    std::optional<files::IndexedDatasetWriter> marks;
    if (chats()) marks.emplace(disk_, prefix + kLossMaskSuffix, files::TokenType::u8);
    for (const auto& chunk : encoded) {
      for (const MarkedTokens& made : chunk) {
        if (made.tokens.empty()) continue;
        writer.add_sequence(std::span<const int32_t>(made.tokens));
        writer.end_document();
        if (!marks) continue;
        const std::vector<int32_t> learned(made.learned.begin(), made.learned.end());
        marks->add_sequence(std::span<const int32_t>(learned));
        marks->end_document();
      }
    }
    const int64_t tokens = writer.num_tokens();
    if (marks) marks->finalize();
    writer.finalize();
    nlohmann::json note{{"next_file", reader.position().file},
                        {"next_offset", reader.position().offset},
                        {"ended", ended_},
                        {"tokens", tokens},
                        {"chats", progress_.chats - before.chats},
                        {"learned", progress_.learned - before.learned},
                        {"long_chats", progress_.long_chats - before.long_chats},
                        {"surrogates", progress_.surrogates - before.surrogates},
                        {"empty", progress_.empty_documents - before.empty_documents},
                        {"bytes_done", progress_.bytes_done},
                        {"sum", dataset_checksum(files::IndexedDataset(disk_, prefix))}};
    if (marks) note["marks_sum"] = dataset_checksum(files::IndexedDataset(disk_, prefix + kLossMaskSuffix));
    disk_.replace_file(prefix + ".json", note.dump() + "\n");
    ++num_parts_;
  }

  void finish() {
    std::vector<std::string> parts;
    for (int64_t i = 0; i < num_parts_; ++i) parts.push_back(part(i));
    merge_datasets(disk_, parts, options_.output_prefix);
    disk_.replace_file(record(), description());
    disk_.remove_tree(directory_);
  }

  files::FileSystem& disk_;
  const PreprocessOptions& options_;
  const Encoder& encoder_;
  std::string directory_;
  PreprocessProgress progress_;
  std::vector<DocumentFile> files_;
  std::vector<int64_t> starts_;  // start of each file in the concatenated bytes
  int64_t begin_ = 0, end_ = 0;  // of this partition
  int64_t part_bytes_ = 0, num_parts_ = 0;
  bool ended_ = false;
  std::mutex mutex_;
};

}  // namespace

std::string recorded_tokenizer(files::FileSystem& disk, const std::string& prefix) {
  if (!disk.exists(record_path(prefix))) return "";
  const auto job = nlohmann::json::parse(disk.read(record_path(prefix)), nullptr, /*allow_exceptions=*/false);
  return job.is_object() && job.contains("tokenizer") && job["tokenizer"].is_string() ? job["tokenizer"] : "";
}

PreprocessProgress preprocess(files::FileSystem& disk, const PreprocessOptions& options, const Encoder& encoder) {
  MPX_CHECK(!options.inputs.empty(), "data", "no input files; pass --input FILES");
  MPX_CHECK(!options.output_prefix.empty() && options.output_prefix.back() != '/', "data", "output prefix '",
            options.output_prefix, "' does not end with a file name; pass a path like data/corpus");
  MPX_CHECK(!options.append_eod || encoder.eod >= 0, "data",
            "--append-eod: the tokenizer has no end-of-document token; choose another tokenizer or omit the option");
  MPX_CHECK(!options.append_eod || encoder.encode_chat == nullptr, "data",
            "--append-eod: the chat template determines the end of a chat; omit the option");
  const bool of_text = options.split_documents || options.json_key != PreprocessOptions{}.json_key;
  MPX_CHECK(!of_text || encoder.encode_chat == nullptr, "data",
            options.split_documents ? "--split-documents" : "--json-key",
            ": applies to text, but a chat is a line of JSON with \"messages\"; omit the option");
  MPX_CHECK(options.num_partitions >= 1 && options.partition >= 0 && options.partition < options.num_partitions,
            "data", "partition ", options.partition, " of ", options.num_partitions,
            "; partitions are numbered from 0");
  return Job(disk, options, encoder).run();
}

static void check_one_tokenizer(files::FileSystem& disk, const std::vector<std::string>& prefixes) {
  std::string first, of_first;
  for (const std::string& prefix : prefixes) {
    const std::string tokenizer = recorded_tokenizer(disk, prefix);
    if (tokenizer.empty()) continue;
    if (of_first.empty()) first = prefix, of_first = tokenizer;
    MPX_CHECK(tokenizer == of_first, "data", "'", first, "' was made with the tokenizer ", of_first, " and '", prefix,
              "' with ", tokenizer, " (", record_path(prefix),
              "): an id would have two meanings; preprocess one of them again with the other's tokenizer");
  }
}

static void concatenate(files::FileSystem& disk, const std::vector<std::string>& prefixes, const std::string& suffix,
                        const std::string& output_prefix) {
  std::optional<files::IndexedDatasetWriter> writer;
  for (const std::string& prefix : prefixes) {
    const files::IndexedDataset part(disk, prefix + suffix);
    if (!writer) writer.emplace(disk, output_prefix + suffix, part.type(), part.has_modes());
    writer->append(part);
  }
  writer->finalize();
}

void merge_datasets(files::FileSystem& disk, const std::vector<std::string>& prefixes,
                    const std::string& output_prefix) {
  MPX_CHECK(!prefixes.empty(), "data", "there are no datasets to merge");
  for (const std::string& prefix : prefixes)
    MPX_CHECK(disk.canonical(prefix + ".idx") != disk.canonical(output_prefix + ".idx"), "data", "'", prefix,
              "' would be merged into itself; choose another --output-prefix");
  check_one_tokenizer(disk, prefixes);
  const bool chats = holds_chats(disk, prefixes[0]);
  for (const std::string& prefix : prefixes)
    MPX_CHECK(holds_chats(disk, prefix) == chats, "data", "'", prefixes[0], "' and '", prefix,
              "': only one of the two contains chats, so they cannot be merged; train on both with a blend in "
              "data.data_path");
  // A loss mask left by another dataset of this name would turn text into chats.
  for (const char* end : {".idx", ".bin"}) {
    const std::string marks = output_prefix + kLossMaskSuffix + end;
    if (disk.exists(marks)) disk.remove_tree(marks);
  }
  if (chats) concatenate(disk, prefixes, kLossMaskSuffix, output_prefix);
  concatenate(disk, prefixes, "", output_prefix);
  if (disk.exists(record_path(output_prefix))) disk.remove_tree(record_path(output_prefix));
}

}  // namespace metroplex::data
