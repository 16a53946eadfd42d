#include "transport.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "wire.h"

_Static_assert(sizeof(struct piece) == sizeof(struct iovec)
                   && offsetof(struct piece, size) == offsetof(struct iovec, iov_len),
               "a piece must match an iovec");

#ifdef WITH_TLS

#include <openssl/err.h>
#include <openssl/ssl.h>

void *start_tls(int socket) {
    static SSL_CTX *context;
    if (!context) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    SSL *tls = SSL_new(context);
    SSL_set_fd(tls, socket);
    if (SSL_connect(tls) != 1)
        die("TLS: %s", ERR_error_string(ERR_get_error(), NULL));
    return tls;
}

static size_t passed(SSL *tls, int result) {
    if (result > 0)
        return (size_t)result;
    int fault = SSL_get_error(tls, result);
    if (fault != SSL_ERROR_WANT_READ && fault != SSL_ERROR_WANT_WRITE)
        die("the broker closed a connection: TLS error %d", fault);
    return 0;
}

static size_t send_with_tls(void *tls, const struct piece *pieces, int count) {
    size_t sent = 0;
    for (int i = 0; i < count; i++) {
        size_t now = passed(tls, SSL_write(tls, pieces[i].data, (int)pieces[i].size));
        sent += now;
        if (now < pieces[i].size)
            break;
    }
    return sent;
}

static size_t receive_with_tls(void *tls, uint8_t *data, size_t size) {
    return passed(tls, SSL_read(tls, data, (int)size));
}

#else

static const char no_tls[] = "compiled without OpenSSL, so there is no TLS";

void *start_tls(__attribute__((unused)) int socket) { die("%s", no_tls); }

static size_t send_with_tls(__attribute__((unused)) void *tls, __attribute__((unused)) const struct piece *pieces,
                            __attribute__((unused)) int count) {
    die("%s", no_tls);
}

static size_t receive_with_tls(__attribute__((unused)) void *tls, __attribute__((unused)) uint8_t *data,
                               __attribute__((unused)) size_t size) {
    die("%s", no_tls);
}

#endif

static size_t moved(ssize_t result) {
    if (result > 0)
        return (size_t)result;
    if (result == 0)
        die("the broker closed a connection");
    if (errno != EAGAIN && errno != EINTR)
        die("a connection failed: %s", strerror(errno));
    return 0;
}

size_t send_pieces(int socket, void *tls, const struct piece *pieces, int count) {
    if (tls)
        return send_with_tls(tls, pieces, count);
    struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = (size_t)count};
    return moved(sendmsg(socket, &message, MSG_NOSIGNAL));
}

size_t receive_bytes(int socket, void *tls, uint8_t *data, size_t size) {
    return tls ? receive_with_tls(tls, data, size) : moved(recv(socket, data, size, 0));
}
