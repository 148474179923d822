#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "comm/backends/run_store.h"
#include "comm/backends/store_messages.h"
#include "comm/network.h"

namespace metroplex::comm {
namespace {

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void wait_for(int fd, short events, std::chrono::steady_clock::time_point end) {
  pollfd waiting{fd, events, 0};
  int ready = 0;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    ready = ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) C10_THROW_ERROR(DistNetworkError, "Socket Timeout");
}

}  // namespace

std::vector<uint8_t> as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

StoreClient::StoreClient(const Address& address) {
  std::string error;
  fd_ = OwnedFd(connect_by_name(address.host, address.port, address.patience, error));
  MPX_CHECK(fd_.get() >= 0, "comm", "no connection to the rendezvous store of rank 0 at ", address.host, ":",
            address.port, " within ", static_cast<double>(address.patience.count()) / 1000, " s: ", error);
  prepare_socket(fd_.get(), kSilence);
  prove_secret(address, Clock::now() + address.answer_limit);
  link_.proven = true;
  link_.longest = kLongestStoreMessage;
}

void StoreClient::prove_secret(const Address& address, Clock::time_point end) {
  bool sent = false;
  std::string problem;
  try {
    const WatchMessage nonce = receive(end);
    link_.nonce = random_secret();
    if (nonce.kind == kNonce) {
      WatchLink hello;
      hello.put(kHello, link_.nonce + " " + prove(address.secret, store_claim("client", nonce.text, link_.nonce)));
      send_all(hello.out, end);
      sent = true;
      const WatchMessage welcome = receive(end);
      if (welcome.kind == kWelcome &&
          equal_secrets(welcome.text, prove(address.secret, store_claim("server", nonce.text, link_.nonce))))
        return;
    }
    problem = "sent another protocol";
  } catch (const c10::DistNetworkError& exception) { problem = exception.what_without_backtrace(); }
  const std::string where = base::concat(address.host, ":", address.port);
  MPX_CHECK(!sent || problem == "Socket Timeout", "comm", "the rendezvous store at ", where,
            " closed the connection: METROPLEX_SECRET differs between ranks, or another program has the port (",
            problem, ")");
  throw base::Error("comm",
                    base::concat("MASTER_PORT = ", address.port, ": ", where,
                                 " accepts connections but has not answered as a rendezvous store for ",
                                 std::chrono::duration_cast<std::chrono::seconds>(address.answer_limit).count(),
                                 " s; rank 0 is stopped, or another program has the port (", problem, ")"));
}

void StoreClient::send_all(const std::string& bytes, Clock::time_point end) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t size = ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (size >= 0) done += static_cast<size_t>(size);
    else if (errno == EAGAIN || errno == EWOULDBLOCK) wait_for(fd_.get(), POLLOUT, end);
    else if (errno != EINTR) C10_THROW_ERROR(DistNetworkError, std::strerror(errno));
  }
}

WatchMessage StoreClient::receive(Clock::time_point end) {
  char buffer[65536];
  while (true) {
    bool refused = false;
    if (auto message = link_.take(refused)) return *std::move(message);
    if (refused) C10_THROW_ERROR(DistNetworkError, "a message that is too long");
    const ssize_t size = ::recv(fd_.get(), buffer, std::min(sizeof buffer, link_.room()), 0);
    if (size > 0) link_.in.append(buffer, static_cast<size_t>(size));
    else if (size == 0) C10_THROW_ERROR(DistNetworkError, "the connection was closed");
    else if (errno == EAGAIN || errno == EWOULDBLOCK) wait_for(fd_.get(), POLLIN, end);
    else if (errno != EINTR) C10_THROW_ERROR(DistNetworkError, std::strerror(errno));
  }
}

// Closes the connection if a call fails, because it may be in the middle of a message.
std::vector<std::string> StoreClient::call(char kind, const std::vector<std::string>& fields) {
  const std::lock_guard lock(mutex_);
  if (fd_.get() < 0) C10_THROW_ERROR(DistNetworkError, "the connection was closed");
  const auto end = Clock::now() + kSilence;
  const std::string text = pack(fields);
  MPX_CHECK(text.size() <= kLongestStoreMessage, "comm", "a value of ", text.size(),
            " bytes is too long for the rendezvous store; run.backend = nccl connects more ranks than gloo");
  WatchLink request;
  request.longest = kLongestStoreMessage;
  request.put(kind, text);
  try {
    send_all(request.out, end);
    const WatchMessage answer = receive(end);
    auto out = unpack(answer.text);
    if (answer.kind != kind || !out) C10_THROW_ERROR(DistNetworkError, "the store sent another protocol");
    return *std::move(out);
  } catch (const c10::DistNetworkError&) {
    fd_ = OwnedFd();
    throw;
  }
}

c10::intrusive_ptr<c10d::Store> StoreClient::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void StoreClient::set(const std::string& key, const std::vector<uint8_t>& value) {
  call(kSet, {key, text_of(value)});
}

std::vector<uint8_t> StoreClient::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  return as_bytes(call(kCompare, {key, text_of(expected), text_of(desired)}).at(0));
}

std::vector<uint8_t> StoreClient::get(const std::string& key) {
  wait({key});
  const std::vector<std::string> value = call(kGet, {key});
  if (value.empty()) C10_THROW_ERROR(DistStoreError, "the key " + key + " was deleted");
  return as_bytes(value[0]);
}

int64_t StoreClient::add(const std::string& key, int64_t amount) {
  return std::stoll(call(kAdd, {key, std::to_string(amount)}).at(0));
}

bool StoreClient::deleteKey(const std::string& key) { return call(kDelete, {key}).at(0) == "1"; }

bool StoreClient::check(const std::vector<std::string>& keys) { return call(kCheck, keys).at(0) == "1"; }

int64_t StoreClient::getNumKeys() { return std::stoll(call(kCount, {}).at(0)); }

void StoreClient::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto end = Clock::now() + timeout;
  for (std::chrono::milliseconds pause{1}; !check(keys); pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
    if (Clock::now() > end)
      C10_THROW_ERROR(DistStoreError,
                      base::concat("no ", keys.empty() ? "key" : keys[0], " in the rendezvous store for ",
                                   static_cast<double>(timeout.count()) / 1000, " s"));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace metroplex::comm
