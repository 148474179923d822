#include "comm/backends/gloo_state.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "comm/network.h"

namespace metroplex::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr const char* kCome = "come";             // number of ranks that have joined
constexpr const char* kWorldSize = "world size";  // from the first rank that joined, with its rank and machine
constexpr const char* kBackend = "backend";       // from the first rank that joined
constexpr const char* kDeciders = "deciders";     // the first rank to increment it writes the decision
constexpr const char* kDecision = "decision";     // kAllHaveCome, kRefused or kMiscounted, and the cause
constexpr const char* kGone = "gone";             // number of ranks that have read a refusal
constexpr const char* kJoined = "joined";         // number of ranks that are connected to all others
constexpr const char* kSecret = "secret";
constexpr char kAllHaveCome = 'c', kRefused = 'r', kMiscounted = 'm';
// kPatience: how long the store stays open for ranks that have not read a refusal. kMiscountPatience: the same after
// a wrong number of processes, counted from the latest rank.
constexpr Milliseconds kPatience{20000}, kMiscountPatience{1500};
// Time for a store that accepts connections to answer the first call. c10d repeats this call until its own, shorter
// timeout.
constexpr std::chrono::seconds kFirstAnswer{15}, kFirstTimeout{14};
// How long the master's name may be unresolved.
constexpr Milliseconds kNamePatience{10000};

std::string come_key(int rank) { return "come/" + std::to_string(rank); }

double in_seconds(Milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// Polls, because a wait inside the store has no limit if rank 0 is stopped.
template <class Condition>
bool poll_until(Clock::time_point end, const Condition& condition) {
  for (Milliseconds pause{2}; !condition(); pause = std::min(2 * pause, Milliseconds(500))) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

// The store's port accepts no connections after startup, so `clone()` shares the connection.
class OneConnectionStore final : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
};

bool serves_store(const GlooOptions& options) { return options.rank == 0 && !options.agent_store; }

std::string place_at(const std::string& address) {
  return base::concat(host_name(), is_loopback(address) ? "" : " (" + address + ")", ", process ", ::getpid());
}

void decide(c10d::Store& store, char kind, const std::string& cause) {
  if (store.add(kDeciders, 1) == 1) store.set(kDecision, as_bytes(kind + cause));
}

// The store ends with rank 0, so rank 0 waits for the other ranks.
void leave_refused(c10d::Store& store, const GlooOptions& options, char kind) {
  try {
    int64_t gone = store.add(kGone, 1);
    if (!serves_store(options)) return;
    auto changed = Clock::now();
    poll_until(Clock::now() + std::min(options.timeout, kPatience), [&] {
      const int64_t now_gone = store.add(kGone, 0);
      if (now_gone != gone) changed = Clock::now();
      gone = now_gone;
      return gone == options.world_size || (kind == kMiscounted && Clock::now() - changed > kMiscountPatience);
    });
  } catch (const c10::DistError&) {
    // The store has ended.
  }
}

void refuse_as(c10d::Store& store, const GlooOptions& options, char kind, const std::string& cause) {
  try {
    decide(store, kind, cause);
  } catch (const c10::DistError&) {
    // The store has ended.
  }
  leave_refused(store, options, kind);
}

// Makes all ranks refuse to start if the processes are not ranks 0 to world_size - 1 of one world.
void check_places(c10d::Store& store, const GlooOptions& options, const std::string& place) {
  const auto claim = [&](const std::string& key, const std::string& value) {
    const std::vector<uint8_t> first = store.compareSet(key, {}, as_bytes(value));
    return std::string(first.begin(), first.end());
  };
  std::string problem;
  const std::string world =
      claim(kWorldSize, base::concat(options.world_size, " rank ", options.rank, " on ", place));
  const size_t space = world.find(' ');
  if (space != std::string::npos && world.substr(0, space) != std::to_string(options.world_size)) {
    problem = base::concat("rank ", options.rank, " on ", place, " was started with a world size of ",
                           options.world_size, ", ", world.substr(space + 1), " with ", world.substr(0, space),
                           "; give all processes the same world size");
  } else {
    const std::string mine = place + ", " + random_secret();
    const std::string owner = claim(come_key(options.rank), mine);
    if (owner != mine)
      problem = base::concat("two processes were started as rank ", options.rank, " of ", options.world_size, ": on ",
                             owner.substr(0, owner.rfind(',')), ", and on ", place, "; give each a rank of its own");
  }
  if (problem.empty()) return;
  refuse_as(store, options, kMiscounted, problem);
  throw base::Error("comm", problem);
}

void check_backend(c10d::Store& store, const GlooOptions& options) {
  const std::string mine = options.full_mesh ? "gloo" : "nccl";
  const std::vector<uint8_t> bytes = store.compareSet(kBackend, {}, as_bytes(mine));
  const std::string first(bytes.begin(), bytes.end());
  if (mine == first) return;
  const std::string problem = base::concat("this rank takes the backend ", mine, ", another one ", first,
                                           "; set run.backend and run.device, or give each rank of all machines a "
                                           "GPU");
  refuse(store, options, "[config] " + problem);
  throw base::Error("config", problem);
}

[[noreturn]] void throw_missing(c10d::Store& store, const GlooOptions& options) {
  constexpr int kMostNamed = 8;
  std::string names;
  int missing = 0;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (store.check({come_key(rank)}) || ++missing > kMostNamed) continue;
    names += (names.empty() ? "" : ", ") + options.describe(rank);
  }
  if (missing > kMostNamed) names += base::concat(" and ", missing - kMostNamed, " more");
  throw base::Error("comm", base::concat(names, " did not start within ", in_seconds(options.timeout), " s"));
}

c10::intrusive_ptr<c10d::Store> connect_to_rank_0(const GlooOptions& options) {
  auto client = c10::make_intrusive<StoreClient>(
      StoreClient::Address{options.master_addr, options.master_port, options.secret, options.timeout, kFirstAnswer});
  client->setTimeout(options.timeout);
  return client;
}

// Checks the connection first: c10d logs its own attempts, which may take twice its timeout.
c10::intrusive_ptr<c10d::Store> connect_to_agent(const GlooOptions& options) {
  const std::string where = options.master_addr + ":" + std::to_string(options.master_port);
  std::string error;
  const OwnedFd reached(connect_by_name(options.master_addr, options.master_port, options.timeout, error));
  MPX_CHECK(reached.get() >= 0, "comm", "no connection to the store of the launcher's agent at ", where, " within ",
            in_seconds(options.timeout), " s: ", error);
  try {
    const CallLimit limit(options.master_port, kFirstAnswer);
    c10d::TCPStoreOptions store;
    store.port = options.master_port;
    store.waitWorkers = false;
    store.timeout = kFirstTimeout;
    auto connected = c10::make_intrusive<c10d::TCPStore>(options.master_addr, store);
    limit_calls(options.master_port, kSilence);
    connected->setTimeout(options.timeout);
    return connected;
  } catch (const std::exception&) {
    throw base::Error("comm", base::concat("MASTER_PORT = ", options.master_port, ": ", where,
                                           " accepts connections but has not answered as a rendezvous store for ",
                                           kFirstAnswer.count(),
                                           " s; the launcher's agent is stopped, or another program has the port (",
                                           cause_of(std::current_exception()).substr(0, 300), ")"));
  }
}

// gloo stores the addresses of all connections of each rank, up to 200 bytes each.
size_t most_bytes(int world_size) {
  const auto ranks = static_cast<size_t>(world_size);
  return (64 << 20) + 1024 * ranks * ranks;
}

}  // namespace

std::optional<std::string> look_up(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  const std::vector<uint8_t> bytes = store.get(key);
  return std::string(bytes.begin(), bytes.end());
}

void throw_store_failure(const GlooOptions& options) {
  const std::string error = cause_of(std::current_exception());
  const std::string who = options.agent_store ? "the launcher's agent" : options.describe(0);
  const bool silent = error.find("Socket Timeout") != std::string::npos;
  throw PeerFailure(base::concat(who,
                                 silent ? base::concat(" has not answered for ", kSilence.count(), " s") : " ended",
                                 " while ranks were starting"));
}

RunStore open_store(const GlooOptions& options) {
  const std::string unknown = why_unknown(options.master_addr, std::min(options.timeout, kNamePatience));
  MPX_CHECK(unknown.empty(), "comm", "the master's name '", options.master_addr, "' leads to no address: ", unknown,
            "; check MASTER_ADDR (or the first host of Slurm's list), or give a numeric address");
  RunStore run;
  if (serves_store(options)) {
    const int fd = options.listen_fd >= 0
                       ? options.listen_fd
                       : listen_at_name(options.master_addr, options.master_port, options.other_machines);
    run.server = std::make_unique<StoreServer>(OwnedFd(fd), options.secret, most_bytes(options.world_size));
  }
  // The store of an agent outlives an attempt, so the attempt is part of the prefix.
  run.store = c10::make_intrusive<OneConnectionStore>(
      base::concat("metroplex/attempt_", options.attempt),
      options.agent_store ? connect_to_agent(options) : connect_to_rank_0(options));
  return run;
}

std::string agree_on_secret(c10d::Store& store, const GlooOptions& options) {
  if (!options.secret.empty()) return options.secret;
  const std::vector<uint8_t> bytes = store.compareSet(kSecret, {}, as_bytes(random_secret()));
  return {bytes.begin(), bytes.end()};
}

void wait_for_all(c10d::Store& store, const GlooOptions& options, const std::function<void()>& check) {
  store.add(kJoined, 1);
  if (options.rank != 0) return;
  const bool all = poll_until(Clock::now() + options.timeout, [&] {
    check();
    return store.add(kJoined, 0) >= options.world_size;
  });
  MPX_CHECK(all, "comm", "not all ranks have connected to each other within ", in_seconds(options.timeout), " s");
}

void meet(c10d::Store& store, const GlooOptions& options, const std::string& address) {
  try {
    check_places(store, options, place_at(address));
    check_backend(store, options);
    if (store.add(kCome, 1) == options.world_size) decide(store, kAllHaveCome, "");
    std::optional<std::string> decision;
    const bool decided = poll_until(Clock::now() + options.timeout, [&] {
      decision = look_up(store, kDecision);
      return decision && !decision->empty();
    });
    if (!decided) throw_missing(store, options);
    const char kind = decision->front();
    if (kind == kAllHaveCome) return;
    leave_refused(store, options, kind);
    throw PeerFailure(decision->substr(1));
  } catch (const c10::DistError&) { throw_store_failure(options); }
}

void refuse(c10d::Store& store, const GlooOptions& options, const std::string& cause) {
  refuse_as(store, options, kRefused, options.describe(options.rank) + " could not start: " + cause);
}

void tell_refusal(GlooOptions options, const std::string& cause) {
  options.timeout = kPatience;
  try {
    const RunStore run = open_store(options);
    refuse(*run.store, options, cause);
  } catch (const std::exception&) {
    // No rank waits for this one.
  }
}

}  // namespace metroplex::comm
