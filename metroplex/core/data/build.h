// Builds the three datasets of a run from the data section of a config, by Megatron's rules for splits, blends and
// sizes. Also reports the contents of its files without building anything.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/sample.h"
#include "files/file_system.h"

namespace metroplex::data {

// Determines the order of the training samples, together with data.split, the seed and the sequence length.
struct TrainOrder {
  // Identifies the documents of the sources, in order and with their weights, independent of file paths. Empty:
  // unknown.
  std::string sources;
  // The epochs of each source for messages, such as "1" or "3 (the last apart)". Empty: unknown.
  std::string epochs;
  bool operator==(const TrainOrder&) const = default;
};

// Null for a split without samples or without requested samples.
struct Splits {
  std::shared_ptr<const Dataset> train;
  std::vector<std::shared_ptr<const Dataset>> valid;  // empty if absent; several with multiple_validation_sets
  std::shared_ptr<const Dataset> test;
  TrainOrder train_order;
};

struct BuildOptions {
  int64_t sequence_length = 0;
  uint64_t seed = 1234;
  std::array<int64_t, 3> sizes{};  // requested samples of train, valid, test; -1: one epoch
  int64_t eod = -1;                // end-of-document token; required for the resets and eod_mask_loss
  int64_t vocab_size = 0;          // mock data: exclusive bound of tokens; else 0 (unchecked) or the bound to check
  std::string tokenizer = {};      // text::identify_tokenizer of the run. Empty: not compared with the datasets
};

// Opens the datasets, builds or reads their index files (ranks may do so concurrently), and blends. Throws
// base::Error with the key or file, the value and a fix.
Splits build_datasets(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Returns only Splits::train_order; reads index files.
TrainOrder train_order(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Throws like build_datasets() for a split without documents and for missing training documents; builds nothing.
void check_splits(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Returns why the sample order of a split needs more memory than is free; "" if memory suffices. Does not read index
// files.
std::string order_problem(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Returns the quoted, comma-separated prefixes of the datasets whose first 100 documents do not contain the token
// `eod`; "" if there is none. Chats are not read.
std::string datasets_without_ends(const config::Data& config, int64_t eod, files::FileSystem& disk);

// If `prefix` is a file or folder of text instead of a dataset, returns the commands to convert it, with the
// tokenizer of `config`. Else returns "".
std::string way_from_text(files::FileSystem& disk, const std::string& prefix, const config::Data& config);

struct SourceTokens {
  std::string prefix;                 // "mock" for mock data
  std::string problem;                // why it could not be read; empty: no problem
  int64_t documents = 0, tokens = 0;  // of the training split
  bool chats = false;
  int64_t learned = 0;       // learned tokens of chats, if counted
  double epoch_samples = 0;  // samples per epoch: packed chats, or text tokens / sequence length
  double share = 0;          // share of the samples: by weight, or by epoch_samples without weights

  // Returns how many times `samples` of the full blend read this source.
  double epochs(double samples) const { return epoch_samples > 0 ? samples * share / epoch_samples : 0; }
};

struct TokenCountOptions {
  int64_t sequence_length = 1;
  uint64_t seed = 1234;
  bool counts_learned = false;  // reads all loss marks of chats
};

// Returns the sources of the training split, in config order. Throws base::Error only for invalid keys; `problem`
// reports a missing or damaged file.
std::vector<SourceTokens> training_tokens(const config::Data& config, files::FileSystem& disk,
                                          const TokenCountOptions& options = {});

// Returns the maximum number of training samples that read no source more than `epochs` times. Throws base::Error for
// unreadable data.
int64_t samples_of_epochs(const config::Data& config, files::FileSystem& disk, double epochs,
                          const TokenCountOptions& options);

}  // namespace metroplex::data
