// From the data section of a config to the three datasets of a run: Megatron's rules for splits, blends and sizes.
// And what its files hold, without building anything.
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

// What determines the order of the training samples, besides data.split, the seed and the sequence length.
struct TrainOrder {
  // Identifies the documents of the sources, in order and with their weights, whatever the paths of the files. Empty:
  // unknown.
  std::string sources;
  // The epochs of each source, "1" or "3 (the last apart)", in words for a message. Empty: unknown.
  std::string epochs;
  bool operator==(const TrainOrder&) const = default;
};

// Null for a split without samples, or of which none are asked for.
struct Splits {
  std::shared_ptr<const Dataset> train;
  std::vector<std::shared_ptr<const Dataset>> valid;  // empty if absent; several with multiple_validation_sets
  std::shared_ptr<const Dataset> test;
  TrainOrder train_order;
};

struct BuildOptions {
  int64_t sequence_length = 0;
  uint64_t seed = 1234;
  std::array<int64_t, 3> sizes{};  // samples wanted of train, valid, test; -1: one epoch
  int64_t eod = -1;                // end-of-document token: needed for the resets and eod_mask_loss
  int64_t vocab_size = 0;      // mock data: tokens stay below; else 0 (unchecked) or the bound every token must keep
  std::string tokenizer = {};  // text::words_of the run's tokenizer. Empty: not compared with that of the datasets
};

// Opens the datasets, builds or reads their index files (safe when ranks do so at once), and blends. Throws
// base::Error naming the key or file, the value and a fix.
Splits build_datasets(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Splits::train_order alone; reads index files.
TrainOrder train_order(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Throws what build_datasets() would for a split without documents, and without documents to train on; builds
// nothing.
void check_splits(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Returns why the order of the samples of a split takes more memory than is free; "" if there is memory for all.
// Does not read index files.
std::string order_problem(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Returns the quoted prefixes, with commas, of the datasets none of whose first 100 documents contains the token
// `eod`. Chats are not read. "" if there is none.
std::string datasets_without_ends(const config::Data& config, int64_t eod, files::FileSystem& disk);

// If `prefix` is not a dataset but a file or folder of text: the commands to run instead, ready to paste, with the
// tokenizer of `config`. Else empty.
std::string way_from_text(files::FileSystem& disk, const std::string& prefix, const config::Data& config);

struct SourceTokens {
  std::string prefix;                 // "mock" for mock data
  std::string problem;                // why it could not be read; empty: no problem
  int64_t documents = 0, tokens = 0;  // of the training split
  bool chats = false;
  int64_t learned = 0;       // of the tokens of chats, where they are counted
  double epoch_samples = 0;  // samples of one epoch: packed chats, or the tokens of text over the sequence length
  double share = 0;          // of the samples: by weight, or by epoch_samples if there are no weights

  // How often `samples` of the whole blend read this source.
  double epochs(double samples) const { return epoch_samples > 0 ? samples * share / epoch_samples : 0; }
};

struct TokenCountOptions {
  int64_t sequence_length = 1;
  uint64_t seed = 1234;         // of the packing of chats
  bool counts_learned = false;  // reads all marks of chats
};

// The sources of the training split, in the order of the config. Throws base::Error only for wrong keys; a missing or
// damaged file is reported in `problem`.
std::vector<SourceTokens> training_tokens(const config::Data& config, files::FileSystem& disk,
                                          const TokenCountOptions& options = {});

// The most samples of the training split that read no source more than `epochs` times. Throws base::Error for data
// that cannot be read here.
int64_t samples_of_epochs(const config::Data& config, files::FileSystem& disk, double epochs,
                          const TokenCountOptions& options);

}  // namespace metroplex::data
