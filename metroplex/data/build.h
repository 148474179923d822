// From the data section of a config to the three datasets of a run: Megatron's rules for splits, blends and sizes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "config/data.h"
#include "data/sample.h"
#include "files/file_system.h"

namespace metroplex::data {

// What the order of the training samples follows from, besides data.split, the seed and the sequence length.
struct TrainOrder {
  // The documents of the sources, in their order and by their weights, wherever their files lie. Empty: not known.
  std::string sources;
  // How often each source is laid out, "1" or "3 (the last apart)", in words for a message. Empty: not known.
  std::string epochs;
  bool operator==(const TrainOrder&) const = default;
};

// Null where there is no sample, or where none is asked for.
struct Splits {
  std::shared_ptr<const Dataset> train, valid, test;
  TrainOrder train_order;
};

struct BuildOptions {
  int64_t sequence_length = 0;
  uint64_t seed = 1234;
  std::array<int64_t, 3> sizes{};  // samples wanted of train, valid, test; -1: one epoch of what is there
  int64_t eod = -1;                // end-of-document token: needed for the resets and eod_mask_loss
  int64_t vocab_size = 0;  // mock data: tokens stay below; else 0 (unchecked) or the bound every token must keep
};

// Opens the datasets, builds or reads their index files (safe when ranks do so at once), and blends. Throws
// base::Error naming the key or file, the value and the way out.
Splits build_datasets(const config::Data& config, const BuildOptions& options);

// Splits::train_order alone; reads index files.
TrainOrder train_order(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// Throws what build_datasets() would for a split without a document, and where there is none to train on; builds
// nothing.
void check_splits(const config::Data& config, const BuildOptions& options, files::FileSystem& disk);

// The short form: no end-of-document token and no bound on tokens.
Splits build_datasets(const config::Data& config, int64_t sequence_length, uint64_t seed,
                      std::array<int64_t, 3> sizes);

}  // namespace metroplex::data
