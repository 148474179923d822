#include "data/preprocess.h"

#include <csignal>
#include <functional>
#include <random>
#include <utility>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "data/scratch.h"
#include "files/fault_file_system.h"
#include "files/memory_file_system.h"
#include "support/error_of.h"

namespace metroplex::data::preprocess_test {
namespace {

// One token per word: its length. The delay lets a test interrupt it.
Encoder word_lengths(int delay_us = 0) {
  Encoder encoder;
  encoder.encode = [delay_us](std::string_view text) {
    if (delay_us > 0) ::usleep(static_cast<useconds_t>(delay_us));
    std::vector<int32_t> out;
    int32_t length = 0;
    for (const char c : text) {
      if (c != ' ' && c != '\n') ++length;
      else if (length > 0) out.push_back(std::exchange(length, 0));
    }
    if (length > 0) out.push_back(length);
    return out;
  };
  encoder.vocab_size = 1000;
  encoder.eod = 999;
  encoder.description = "word lengths";
  return encoder;
}

std::string some_text(int documents) {
  std::mt19937 random(11);
  std::string text;
  for (int d = 0; d < documents; ++d) {
    for (uint32_t w = 0; w <= random() % 40; ++w)
      text += std::string(1 + random() % 9, 'x') + (random() % 7 ? " " : "\n");
    text += "\n\n";
  }
  return text;
}

void write_memory(files::FileSystem& disk, const std::string& path, const std::string& text) {
  const auto file = disk.create(path);
  file->write(text.data(), text.size());
  file->sync();
  file->close();
  disk.sync_directory("/");
}

PreprocessOptions make_options(const std::string& input, const std::string& prefix) {
  PreprocessOptions options;
  options.inputs = {input};
  options.output_prefix = prefix;
  options.split_documents = options.append_eod = true;
  options.part_bytes = 1000;
  return options;
}

struct Output {
  std::string bin, idx;
  bool operator==(const Output&) const = default;
};
Output read_output(files::FileSystem& disk, const std::string& prefix) {
  return {disk.read(prefix + ".bin"), disk.read(prefix + ".idx")};
}

TEST(Preprocess, GivesTheSameBytesWithAnyNumberOfWorkersAndPartSizes) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", some_text(200));
  Output first;
  for (const int workers : {1, 2, 5}) {
    for (const int64_t part : {1, 600, 1 << 20}) {
      PreprocessOptions options = make_options("/in.txt", "/out");
      options.workers = workers;
      options.part_bytes = part;
      options.overwrite = true;
      const auto done = preprocess(disk, options, word_lengths());
      EXPECT_EQ(done.documents, 200);
      const Output now = read_output(disk, "/out");
      if (first.bin.empty()) first = now;
      EXPECT_TRUE(now == first) << workers << " workers, parts of " << part;
      EXPECT_FALSE(disk.exists("/out.preprocess"));
    }
  }
}

TEST(Preprocess, WritesDocumentsWithTheirEod) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", "a bb\n\nccc\n");
  preprocess(disk, make_options("/in.txt", "/out"), word_lengths());
  const files::IndexedDataset dataset(disk, "/out");
  EXPECT_EQ(dataset.type(), files::TokenType::u16);
  ASSERT_EQ(dataset.num_documents(), 2);
  std::vector<int64_t> tokens(5);
  dataset.read(0, 0, 5, tokens.data());
  EXPECT_EQ(tokens, (std::vector<int64_t>{1, 2, 999, 3, 999}));
}

TEST(Preprocess, AddsTheSpecialTokensOfTheTokenizer) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.jsonl", "{\"text\": \"a bb\"}\n{\"text\": \"\"}\n{\"text\": \"ccc\"}\n");
  const auto tokens_of = [&](const std::vector<int32_t>& before, const std::vector<int32_t>& after) {
    Encoder encoder = word_lengths();
    encoder.before = before;
    encoder.after = after;
    PreprocessOptions options = make_options("/in.jsonl", "/out");
    options.overwrite = true;
    EXPECT_EQ(preprocess(disk, options, encoder).empty_documents, 1);
    const files::IndexedDataset dataset(disk, "/out");
    std::vector<int64_t> tokens(static_cast<size_t>(dataset.num_tokens()));
    dataset.read(0, 0, dataset.num_tokens(), tokens.data());
    return tokens;
  };
  using Tokens = std::vector<int64_t>;
  EXPECT_EQ(tokens_of({7}, {}), (Tokens{7, 1, 2, 999, 7, 3, 999}));
  EXPECT_NE(disk.read("/out.preprocess.json").find("special_tokens"), std::string::npos);
  EXPECT_EQ(tokens_of({7}, {8, 999}), (Tokens{7, 1, 2, 8, 999, 7, 3, 8, 999})) << "one end of document, not two";
  EXPECT_EQ(tokens_of({}, {8}), (Tokens{1, 2, 8, 999, 3, 8, 999}));
  EXPECT_EQ(tokens_of({}, {}), (Tokens{1, 2, 999, 3, 999}));
  EXPECT_EQ(disk.read("/out.preprocess.json").find("special_tokens"), std::string::npos);
}

TEST(Preprocess, CountsSurrogatesOfAllParts) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.jsonl", "{\"text\": \"a\\ud800\"}\n{\"text\": \"b\\udc00\"}\n");
  PreprocessOptions options = make_options("/in.jsonl", "/out");
  options.part_bytes = 1;
  EXPECT_EQ(preprocess(disk, options, word_lengths()).surrogates, 2);
}

TEST(Preprocess, MergesPartitionsToTheWhole) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/a.txt", some_text(70));
  write_memory(disk, "/b.txt", some_text(50));
  PreprocessOptions options = make_options("/a.txt", "/whole");
  options.inputs = {"/a.txt", "/b.txt"};
  preprocess(disk, options, word_lengths());
  options.num_partitions = 3;
  for (options.partition = 0; options.partition < 3; ++options.partition) {
    options.output_prefix = "/part" + std::to_string(options.partition);
    preprocess(disk, options, word_lengths());
  }
  merge_datasets(disk, {"/part0", "/part1", "/part2"}, "/merged");
  EXPECT_TRUE(read_output(disk, "/merged") == read_output(disk, "/whole"));
}

TEST(Preprocess, RefusesToMergeWhatDifferentTokenizersMade) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", some_text(20));
  Encoder encoder = word_lengths();
  for (const std::string name : {"one", "two", "three"}) {
    encoder.tokenizer = name == "three" ? "another" : "words";
    preprocess(disk, make_options("/in.txt", "/" + name), encoder);
  }
  EXPECT_NO_THROW(merge_datasets(disk, {"/one", "/two"}, "/merged"));
  const std::string refusal = test::catch_error([&] { merge_datasets(disk, {"/one", "/two", "/three"}, "/all"); });
  for (const char* word : {"'/one'", " words ", "'/three'", " another ", "/three.preprocess.json"})
    EXPECT_NE(refusal.find(word), std::string::npos) << word << ": " << refusal;
  EXPECT_FALSE(disk.exists("/all.idx"));
  EXPECT_NO_THROW(merge_datasets(disk, {"/merged", "/three"}, "/all")) << "of what was merged nothing is recorded";
}

TEST(Preprocess, LeavesOutEmptyDocumentsAndCountsThem) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": \"  \"}\n{\"text\": \"b\"}\n");
  const auto done = preprocess(disk, make_options("/in.jsonl", "/out"), word_lengths());
  EXPECT_EQ(done.documents, 2);
  EXPECT_EQ(done.empty_documents, 2);
}

TEST(Preprocess, RefusesAnEmptyCorpusAndBadTextAndLeavesNothing) {
  for (const std::string text : {"", " \n\n ", "good\n\nbad \xff\n"}) {
    files::MemoryFileSystem disk;
    write_memory(disk, "/in.txt", text);
    EXPECT_THROW(preprocess(disk, make_options("/in.txt", "/out"), word_lengths()), base::Error) << text;
    EXPECT_EQ(disk.list("/"), std::vector<std::string>{"in.txt"});
  }
}

TEST(Preprocess, KeepsTheOldResultWhenTheNewOneFails) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", some_text(20));
  preprocess(disk, make_options("/in.txt", "/out"), word_lengths());
  const Output before = read_output(disk, "/out");
  write_memory(disk, "/bad.txt", some_text(20) + "\xff");
  PreprocessOptions bad = make_options("/bad.txt", "/out");
  bad.overwrite = true;
  EXPECT_THROW(preprocess(disk, bad, word_lengths()), base::Error);
  EXPECT_TRUE(read_output(disk, "/out") == before);
}

TEST(Preprocess, RefusesOptionsThatCannotBe) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", "a");
  Encoder no_eod = word_lengths();
  no_eod.eod = -1;
  EXPECT_THROW(preprocess(disk, make_options("/in.txt", "/out"), no_eod), base::Error);
  PreprocessOptions options = make_options("/in.txt", "/out");
  options.inputs.clear();
  EXPECT_THROW(preprocess(disk, options, word_lengths()), base::Error);
  options = make_options("/in.txt", "/out");
  options.partition = 2;
  options.num_partitions = 2;
  EXPECT_THROW(preprocess(disk, options, word_lengths()), base::Error);
}

TEST(Preprocess, LetsOnlyOneRunWorkOnAPrefix) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", "a");
  disk.make_directory("/out.preprocess");
  const auto lock = disk.try_lock("/out.preprocess/lock");
  EXPECT_THROW(preprocess(disk, make_options("/in.txt", "/out"), word_lengths()), base::Error);
}

// The process dies, or the power fails, at every single call that accesses the disk; the next run must give the same
// bytes.
TEST(Preprocess, GivesTheSameBytesAfterDyingAtAnyMoment) {
  files::MemoryFileSystem whole;
  write_memory(whole, "/in.txt", some_text(90));
  const PreprocessOptions options = make_options("/in.txt", "/out");
  files::FaultFileSystem counter(whole, {});
  preprocess(counter, options, word_lengths());
  const Output expected = read_output(whole, "/out");
  ASSERT_GT(counter.calls(), 30);
  int64_t resumed = 0;
  for (int64_t call = 0; call < counter.calls(); ++call) {
    for (const bool power_cut : {false, true}) {
      files::MemoryFileSystem disk;
      write_memory(disk, "/in.txt", some_text(90));
      files::FaultFileSystem dying(disk, {.crash_at_call = call});
      EXPECT_THROW(preprocess(dying, options, word_lengths()), files::SimulatedCrash);
      const auto after = power_cut ? disk.after_power_cut(static_cast<uint64_t>(call)) : disk.after_kill();
      resumed += preprocess(*after, options, word_lengths()).bytes_resumed > 0;
      EXPECT_TRUE(read_output(*after, "/out") == expected)
          << "call " << call << (power_cut ? ", power cut" : ", killed");
      EXPECT_FALSE(after->exists("/out.preprocess"));
    }
  }
  EXPECT_GT(resumed, counter.calls()) << "more than half of the runs go on, they do not begin again";
}

// Every option that affects the bytes is part of the job, for an unfinished job and for a finished one.
TEST(Preprocess, BeginsAgainWhenTheJobIsAnotherAndReplacesADatasetOnlyWhenAsked) {
  using Change = std::function<void(PreprocessOptions&, Encoder&)>;
  const std::pair<const char*, Change> changes[] = {
      {"encoder", [](auto&, auto& e) { e.description = "another tokenizer"; }},
      {"vocab_size", [](auto&, auto& e) { e.vocab_size = 100000; }},
      {"eod", [](auto&, auto& e) { e.eod = 998; }},
      {"append_eod", [](auto& o, auto&) { o.append_eod = false; }},
      {"split_documents", [](auto& o, auto&) { o.split_documents = false; }},
      {"json_key", [](auto& o, auto&) { o.json_key = "body"; }},
      {"format", [](auto& o, auto&) { o.format = TextFormat::text; }},
      {"partition", [](auto& o, auto&) { o.num_partitions = 2; }},
      {"inputs", [](auto& o, auto&) { o.inputs = {"/b.jsonl"}; }}};
  const std::string line = "{\"text\": \"one two\", \"body\": \"three\"}\n";
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += line;
  files::MemoryFileSystem half, whole;
  for (files::MemoryFileSystem* disk : {&half, &whole}) {
    write_memory(*disk, "/a.jsonl", lines);
    write_memory(*disk, "/b.jsonl", lines);
  }
  const PreprocessOptions options = make_options("/a.jsonl", "/out");
  files::FaultFileSystem dying(half, {.crash_at_call = 60});
  EXPECT_THROW(preprocess(dying, options, word_lengths()), files::SimulatedCrash);
  EXPECT_GT(preprocess(*half.after_kill(), options, word_lengths()).bytes_resumed, 0);
  preprocess(whole, options, word_lengths());
  EXPECT_NO_THROW(preprocess(whole, options, word_lengths())) << "the same job gives the same dataset";
  const Output before = read_output(whole, "/out");
  for (const auto& [name, change] : changes) {
    PreprocessOptions other = options;
    Encoder encoder = word_lengths();
    change(other, encoder);
    EXPECT_EQ(preprocess(*half.after_kill(), other, encoder).bytes_resumed, 0) << name;
    const auto disk = whole.after_kill();
    EXPECT_THROW(preprocess(*disk, other, encoder), base::Error) << name;
    EXPECT_TRUE(read_output(*disk, "/out") == before) << name;
    other.overwrite = true;
    EXPECT_NO_THROW(preprocess(*disk, other, encoder)) << name;
  }
}

TEST(Preprocess, CountsTheEmptyDocumentsOfAnEarlierRunOnce) {
  files::MemoryFileSystem disk;
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += i % 3 == 0 ? "{\"text\": \" \"}\n" : "{\"text\": \"one two three\"}\n";
  write_memory(disk, "/in.jsonl", lines);
  const PreprocessOptions options = make_options("/in.jsonl", "/out");
  const auto apart = disk.after_kill();
  files::FaultFileSystem counter(*apart, {});
  const auto whole = preprocess(counter, options, word_lengths());
  EXPECT_EQ(whole.empty_documents, 100);
  EXPECT_EQ(whole.documents, 200);
  for (const int64_t call : {counter.calls() / 4, counter.calls() / 3, counter.calls() / 2}) {
    const auto once = disk.after_kill();
    files::FaultFileSystem dying(*once, {.crash_at_call = call});
    EXPECT_THROW(preprocess(dying, options, word_lengths()), files::SimulatedCrash);
    const auto resumed = preprocess(*once->after_kill(), options, word_lengths());
    EXPECT_GT(resumed.bytes_resumed, 0);
    EXPECT_EQ(resumed.empty_documents, 100) << "killed at call " << call;
    EXPECT_EQ(resumed.documents, 200) << "killed at call " << call;
    EXPECT_EQ(resumed.tokens, whole.tokens) << "killed at call " << call;
  }
}

TEST(Preprocess, LeavesAloneWhatItDidNotMakeAndRefusesTokenDatasetsAsText) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", "a bb");
  disk.make_directory("/out.preprocess");
  write_memory(disk, "/out.preprocess/thesis.tex", "years of work");
  EXPECT_THROW(preprocess(disk, make_options("/in.txt", "/out"), word_lengths()), base::Error);
  EXPECT_EQ(disk.read("/out.preprocess/thesis.tex"), "years of work");
  write_memory(disk, "/data.bin", "looks like text");
  try {
    preprocess(disk, make_options("/data.bin", "/other"), word_lengths());
    FAIL() << "accepted";
  } catch (const base::Error& error) {
    for (const char* word : {"/data.bin", "--merge", "--format text"})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  PreprocessOptions forced = make_options("/data.bin", "/other");
  forced.format = TextFormat::text;
  EXPECT_EQ(preprocess(disk, forced, word_lengths()).documents, 1);
}

TEST(Preprocess, StopsOnAFullDiskAndGoesOnLater) {
  files::MemoryFileSystem disk;
  write_memory(disk, "/in.txt", some_text(100));
  const PreprocessOptions options = make_options("/in.txt", "/out");
  files::FaultFileSystem full(disk, {.space_bytes = 4000});
  EXPECT_THROW(preprocess(full, options, word_lengths()), base::Error);
  EXPECT_FALSE(disk.exists("/out.bin"));
  EXPECT_GT(preprocess(disk, options, word_lengths()).bytes_resumed, 0);
}

// A real process, really killed, at random moments of its work: after a number of progress reports.
TEST(Preprocess, GoesOnAfterKill) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  const std::string input = scratch.write("in.txt", some_text(60));
  int reports = 0;
  PreprocessOptions counting = make_options(input, scratch / "expected");
  counting.progress = [&](const PreprocessProgress&) { ++reports; };
  preprocess(disk, counting, word_lengths(300));
  ASSERT_GT(reports, 2);
  std::mt19937 random(5);
  int killed = 0;
  for (int round = 0; round < 4; ++round) {
    const std::string prefix = scratch / ("out" + std::to_string(round));
    int kills_left = 3;  // a kill soon after the start loses the progress not yet on the disk: not forever
    for (bool done = false; !done;) {
      int pipe[2];
      ASSERT_EQ(::pipe(pipe), 0);
      const pid_t child = ::fork();
      if (child == 0) {
        PreprocessOptions telling = make_options(input, prefix);
        telling.progress = [&](const PreprocessProgress&) { [[maybe_unused]] auto sent = ::write(pipe[1], "", 1); };
        preprocess(disk, telling, word_lengths(300));
        ::_exit(0);
      }
      ::close(pipe[1]);
      char byte = 0;
      auto left = 1 + random() % static_cast<uint32_t>(reports / 2);
      while ((kills_left == 0 || left-- > 0) && ::read(pipe[0], &byte, 1) == 1) {}  // 0: it has ended
      if (kills_left-- > 0) ::kill(child, SIGKILL);
      int status = 0;
      ::waitpid(child, &status, 0);
      ::close(pipe[0]);
      done = WIFEXITED(status);
      killed += !done;
    }
    EXPECT_TRUE(read_output(disk, prefix) == read_output(disk, scratch / "expected"));
  }
  EXPECT_GT(killed, 0);
}

}  // namespace
}  // namespace metroplex::data::preprocess_test
