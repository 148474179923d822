#include "data/build.h"

#include <algorithm>

#include "base/error.h"
#include "data/blend.h"
#include "data/token_source.h"

namespace metroplex::data {
namespace {

void count(const TokenSource& source, const std::pair<double, double>& bounds, SourceTokens& out) {
  const auto [begin, end] = split_range(bounds, source.num_sequences());
  out.documents = end - begin;
  for (int64_t document = begin; document < end; ++document) out.tokens += source.length(document);
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
                     const std::pair<double, double>& bounds, bool counts_learned) {
  SourceTokens out;
  out.prefix = prefix;
  out.problem = way_from_text(disk, prefix, config);
  if (!out.problem.empty()) return out;
  if (!disk.exists(prefix + ".idx")) {
    out.problem = "there is no " + prefix + ".idx here";
    return out;
  }
  try {
    refuse_loss_mask(prefix);
    count(IndexedSource(disk, prefix), bounds, out);
    out.chats = holds_chats(disk, prefix);
    if (out.chats && counts_learned) count_learned(ChatSource(disk, prefix), bounds, out);
  } catch (const base::Error& error) { out.problem = error.what(); }
  return out;
}

SourceTokens mock() {
  SourceTokens out;
  out.prefix = "mock";
  out.share = 1;
  count(MockSource(/*vocab_size=*/2, /*eod=*/1), *split_bounds(parse_split("1,1,1"))[0], out);
  return out;
}

void share_out(const Blend& blend, std::vector<SourceTokens>& sources) {
  double all = 0;
  for (const SourceTokens& source : sources) all += static_cast<double>(source.tokens);
  const std::vector<double> weights = blend.weights ? normalize(*blend.weights) : std::vector<double>{};
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i].share = sources.size() == 1 ? 1
                       : blend.weights     ? weights[i]
                       : all > 0           ? static_cast<double>(sources[i].tokens) / all
                                           : 0;
  }
}

}  // namespace

std::vector<SourceTokens> training_tokens(const config::Data& config, files::FileSystem& disk, bool counts_learned) {
  if (config.mock_data) return {mock()};
  const bool own = !config.train_data_path.empty();
  const auto blend = parse_blend(own ? config.train_data_path : config.data_path);
  if (!blend) return {};
  const SplitBounds bounds = split_bounds(parse_split(own ? "1" : config.split));
  std::vector<SourceTokens> sources;
  if (!bounds[0]) return sources;
  for (const std::string& prefix : blend->prefixes)
    sources.push_back(look_at(disk, config, prefix, *bounds[0], counts_learned));
  share_out(*blend, sources);
  return sources;
}

}  // namespace metroplex::data
