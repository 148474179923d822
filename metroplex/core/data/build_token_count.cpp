#include "data/build.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "data/blend.h"
#include "data/chat_dataset.h"
#include "data/token_source.h"

namespace metroplex::data {
namespace {

void count(const TokenSource& source, const std::pair<double, double>& bounds, int64_t sequence_length,
           SourceTokens& out) {
  const auto [begin, end] = split_range(bounds, source.num_sequences());
  out.documents = end - begin;
  for (int64_t document = begin; document < end; ++document) out.tokens += source.length(document);
  out.epoch_samples = static_cast<double>(out.tokens) / static_cast<double>(sequence_length);
}

// Returns the samples of the first epoch. Other epochs pack the chats in another order.
double packed_samples(const TokenSource& source, const std::pair<double, double>& bounds,
                      const TokenCountOptions& options) {
  const auto [begin, end] = split_range(bounds, source.num_sequences());
  std::vector<int32_t> chats;
  std::vector<int64_t> lengths;
  for (int64_t chat = begin; chat < end; ++chat) {
    chats.push_back(static_cast<int32_t>(chat));
    lengths.push_back(std::clamp<int64_t>(source.length(chat) - 1, 0, options.sequence_length));
  }
  ChatOptions packing;
  packing.sequence_length = options.sequence_length;
  packing.seed = static_cast<uint32_t>(options.seed);
  return static_cast<double>(pack_chats(chats, lengths, packing, 0).size());
}

void count_learned(const ChatSource& source, const std::pair<double, double>& bounds, SourceTokens& out) {
  const auto [begin, end] = split_range(bounds, source.num_sequences());
  std::vector<int64_t> marks;
  for (int64_t chat = begin; chat < end; ++chat) {
    marks.resize(static_cast<size_t>(source.length(chat)));
    source.read_learned(chat, 0, source.length(chat), marks.data());
    out.learned += std::count(marks.begin(), marks.end(), 1);
  }
}

SourceTokens look_at(files::FileSystem& disk, const config::Data& config, const std::string& prefix,
                     const std::pair<double, double>& bounds, const TokenCountOptions& options) {
  SourceTokens out;
  out.prefix = prefix;
  out.problem = way_from_text(disk, prefix, config);
  if (!out.problem.empty()) return out;
  if (!disk.exists(prefix + ".idx")) {
    out.problem = prefix + ".idx does not exist here";
    return out;
  }
  try {
    refuse_loss_mask(prefix);
    const IndexedSource source(disk, prefix);
    count(source, bounds, options.sequence_length, out);
    out.chats = holds_chats(disk, prefix);
    if (out.chats) out.epoch_samples = packed_samples(source, bounds, options);
    if (out.chats && options.counts_learned) count_learned(ChatSource(disk, prefix), bounds, out);
  } catch (const base::Error& error) { out.problem = error.what(); }
  return out;
}

SourceTokens mock(int64_t sequence_length) {
  SourceTokens out;
  out.prefix = "mock";
  out.share = 1;
  count(MockSource(/*vocab_size=*/2, /*eod=*/1), *split_bounds(parse_split("1,1,1"))[0], sequence_length, out);
  return out;
}

void share_out(const Blend& blend, std::vector<SourceTokens>& sources) {
  double all = 0;
  for (const SourceTokens& source : sources) all += source.epoch_samples;
  const std::vector<double> weights = blend.weights ? normalize(*blend.weights) : std::vector<double>{};
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i].share = sources.size() == 1 ? 1
                       : blend.weights     ? weights[i]
                       : all > 0           ? sources[i].epoch_samples / all
                                           : 0;
  }
}

std::optional<Blend> training_blend(const config::Data& config) {
  return parse_blend(config.train_data_path.empty() ? config.data_path : config.train_data_path);
}

// Returns the samples of `epochs` passes over a source. A text has one token more than its samples have positions.
double samples_in(const SourceTokens& source, double epochs, const TokenCountOptions& options) {
  return epochs * source.epoch_samples - (source.chats ? 0 : 1 / static_cast<double>(options.sequence_length));
}

// A blend without weights contains each sample once.
double samples_without_weights(const std::vector<SourceTokens>& sources, double epochs,
                               const TokenCountOptions& options) {
  double all = 0;
  std::string weights;
  for (const SourceTokens& source : sources) {
    all += std::max(0.0, std::floor(samples_in(source, 1, options) + 1e-6));
    weights += base::concat(" ", std::max<int64_t>(1, std::llround(source.epoch_samples)), " ", source.prefix);
  }
  MPX_CHECK(epochs <= 1, "config", "train.train_epochs = ", epochs,
            ": datasets without weights are read once; set their weights (data.data_path:", weights, ")");
  return all;
}

}  // namespace

std::vector<SourceTokens> training_tokens(const config::Data& config, files::FileSystem& disk,
                                          const TokenCountOptions& options) {
  if (config.mock_data) return {mock(options.sequence_length)};
  const bool own = !config.train_data_path.empty();
  const auto blend = training_blend(config);
  if (!blend) return {};
  const SplitBounds bounds = split_bounds(parse_split(own ? "1" : config.split));
  std::vector<SourceTokens> sources;
  if (!bounds[0]) return sources;
  for (const std::string& prefix : blend->prefixes)
    sources.push_back(look_at(disk, config, prefix, *bounds[0], options));
  share_out(*blend, sources);
  return sources;
}

int64_t samples_of_epochs(const config::Data& config, files::FileSystem& disk, double epochs,
                          const TokenCountOptions& options) {
  const std::vector<SourceTokens> sources = training_tokens(config, disk, options);
  double most = std::numeric_limits<double>::infinity();
  for (const SourceTokens& source : sources) {
    MPX_CHECK(source.problem.empty(), "config", "train.train_epochs = ", epochs,
              ": the data must be readable here: ", source.problem);
    if (source.share == 0) continue;
    most = std::min(most, samples_in(source, epochs, options) / source.share);
  }
  const auto blend = training_blend(config);
  if (sources.size() > 1 && !blend->weights) most = std::min(most, samples_without_weights(sources, epochs, options));
  MPX_CHECK(std::isfinite(most) && most >= 1, "config", "train.train_epochs = ", epochs,
            ": this is less than one sample; increase it, or use data with more tokens");
  return static_cast<int64_t>(most + 1e-6);
}

}  // namespace metroplex::data
