// kfake as a process of its own: one broker that keeps its logs in a directory.
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	directory := flag.String("data-dir", "", "where the logs lie")
	port := flag.Int("port", 0, "on 127.0.0.1; 0: any")
	synced := flag.Bool("sync", false, "sync each batch, instead of leaving it in the page cache")
	certificate := flag.String("certificate", "", "serve TLS with this file, which holds the key too")
	flag.Parse()
	if err := serve(*directory, *port, *synced, *certificate); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(directory string, port int, synced bool, certificate string) error {
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(directory)}
	if synced {
		options = append(options, kfake.SyncWrites())
	}
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, certificate)
		if err != nil {
			return err
		}
		options = append(options, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return err
	}
	defer cluster.Close()
	fmt.Println("ready", cluster.ListenAddrs()[0])
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, os.Interrupt)
	<-ended
	return nil
}
